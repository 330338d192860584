//! Describes the machine: enough to judge the figures by, but nothing that identifies
//! it.

use std::fs;

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn field<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines()
        .find(|l| l.starts_with(key))
        .and_then(|l| l.split_once(':'))
        .map(|(_, v)| v.trim())
}

/// Describes processor, cores, memory, kernel, and the settings that affect the
/// figures.
pub fn describe() -> String {
    let cpu = read("/proc/cpuinfo");
    let model = field(&cpu, "model name")
        .unwrap_or("unknown processor")
        .to_owned();
    let cores = cpu.lines().filter(|l| l.starts_with("processor")).count();
    let virtual_machine = if cpu
        .lines()
        .any(|l| l.starts_with("flags") && l.contains(" hypervisor"))
    {
        ", virtual machine"
    } else {
        ""
    };
    let mem = read("/proc/meminfo");
    let gib = field(&mem, "MemTotal")
        .and_then(|v| v.split_whitespace().next())
        .and_then(|v| v.parse::<f64>().ok())
        .map_or(0.0, |kib| kib / (1 << 20) as f64);
    let kernel = read("/proc/sys/kernel/osrelease");
    // Only the number: the rest may identify the builder.
    let kernel: String = kernel
        .trim()
        .chars()
        .take_while(|c| c.is_ascii_digit() || *c == '.')
        .collect();
    let thp = read("/sys/kernel/mm/transparent_hugepage/enabled");
    let thp = thp.split(['[', ']']).nth(1).unwrap_or("unknown").to_owned();
    format!(
        "{model}, {cores} cores{virtual_machine}, {gib:.0} GiB memory, Linux {}, anonymous huge pages {thp}",
        kernel.trim_end_matches('.')
    )
}

/// Returns the load average of the last minute. A busy machine gives poor figures.
pub fn load() -> f64 {
    read("/proc/loadavg")
        .split(' ')
        .next()
        .and_then(|v| v.parse().ok())
        .unwrap_or(0.0)
}

/// Returns `MemAvailable` in bytes.
pub fn available_memory() -> u64 {
    field(&read("/proc/meminfo"), "MemAvailable")
        .and_then(|v| v.split_whitespace().next())
        .and_then(|v| v.parse::<u64>().ok())
        .map_or(0, |kib| kib << 10)
}

/// Returns the sum of a field of `/proc/self/smaps`, in bytes, over the mappings
/// that overlap an address range.
pub fn smaps_sum(range: std::ops::Range<usize>, key: &str) -> u64 {
    let mut inside = false;
    let mut sum = 0;
    for line in read("/proc/self/smaps").lines() {
        let first = line.split(' ').next().unwrap_or("");
        let hex = |t: &str| usize::from_str_radix(t, 16).ok();
        let bounds = first
            .split_once('-')
            .and_then(|(a, b)| Some((hex(a)?, hex(b)?)));
        if let Some((a, b)) = bounds {
            inside = a < range.end && b > range.start;
            continue;
        }
        if inside && first.trim_end_matches(':') == key {
            let kib: u64 = line
                .split_whitespace()
                .nth(1)
                .and_then(|v| v.parse().ok())
                .unwrap_or(0);
            sum += kib << 10;
        }
    }
    sum
}
