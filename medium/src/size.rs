//! Parses and prints sizes. Units are binary: 1K is 1024 bytes.

/// Parses `4096`, `256K`, `64M`, `1G`, `2T`. The suffix may be lower case and may
/// end in `iB`.
///
/// # Errors
/// A sentence that tells what is wrong.
pub fn parse(text: &str) -> Result<u64, String> {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    let bad = || {
        format!(
            "\"{text}\" is not a size; give a whole number of bytes, or one with K, M, G or T (1K = 1024 bytes)"
        )
    };
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        "p" | "pib" => 50,
        _ => return Err(bad()),
    };
    let number: u64 = digits.parse().map_err(|_| bad())?;
    number
        .checked_mul(1 << shift)
        .ok_or_else(|| format!("{text} does not fit in 64 bits of bytes"))
}

/// Formats a size for people: `1.0 GiB`, `256 KiB`, `4096 bytes`.
pub fn human(bytes: u64) -> String {
    const UNITS: [(&str, u32); 5] = [
        ("PiB", 50),
        ("TiB", 40),
        ("GiB", 30),
        ("MiB", 20),
        ("KiB", 10),
    ];
    for (unit, shift) in UNITS {
        if bytes >= 1 << shift {
            let whole = bytes >> shift;
            return if bytes.is_multiple_of(1 << shift) {
                format!("{whole} {unit}")
            } else {
                format!(
                    "{:.1} {unit}",
                    bytes as f64 / f64::from(2).powi(shift as i32)
                )
            };
        }
    }
    format!("{bytes} bytes")
}

/// `128M`, `1G`, `4096`: as [`parse`] reads it.
pub fn short(bytes: u64) -> String {
    const UNITS: [(&str, u32); 5] = [("P", 50), ("T", 40), ("G", 30), ("M", 20), ("K", 10)];
    for (unit, shift) in UNITS {
        if bytes > 0 && bytes.is_multiple_of(1 << shift) {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    bytes.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_parsed() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("256K", 256 << 10),
            ("64m", 64 << 20),
            ("1GiB", 1 << 30),
            ("2T", 2 << 40),
            ("7b", 7),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for text in [
            "",
            "K",
            "1.5G",
            "-1",
            "1X",
            "1 G",
            "99999999999999999999",
            "20000000P",
            "0x10",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_formatted() {
        assert_eq!(human(1 << 30), "1 GiB");
        assert_eq!(human(3 << 29), "1.5 GiB");
        assert_eq!(human(256 << 10), "256 KiB");
        assert_eq!(human(1000), "1000 bytes");
        for text in ["128M", "1G", "3K", "1000", "0", "1025K"] {
            assert_eq!(short(parse(text).unwrap()), text);
        }
    }
}
