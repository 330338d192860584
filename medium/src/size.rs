//! Parses and prints sizes. Units are binary: 1K is 1024 bytes.

/// Most digits after the point of a size.
const MOST_DIGITS: usize = 18;

/// Parses `4096`, `256K`, `64M`, `1.5G`, `2T`. The suffix may be lower case and may
/// end in `iB`. The size is exact: a fraction that is no whole number of bytes is an error.
///
/// # Errors
/// A sentence that tells what is wrong.
pub fn parse(text: &str) -> Result<u64, String> {
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let bad = || {
        format!(
            "\"{text}\" is not a size; give a whole number of bytes, or a number with K, M, G or T (1K = 1024 bytes)"
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
    let too_large = || format!("{text} does not fit in 64 bits of bytes");
    let Some((digits, fraction)) = number.split_once('.') else {
        let number: u64 = number.parse().map_err(|_| bad())?;
        return number.checked_mul(1 << shift).ok_or_else(too_large);
    };
    if digits.is_empty() || fraction.is_empty() || fraction.len() > MOST_DIGITS {
        return Err(bad());
    }
    let whole: u64 = digits.parse().map_err(|_| bad())?;
    let parts: u64 = fraction.parse().map_err(|_| bad())?;
    // Exactly: 64 bits, and 50 of the unit.
    let parts = u128::from(parts) << shift;
    let one = 10u128.pow(fraction.len() as u32);
    if !parts.is_multiple_of(one) {
        return Err(format!("\"{text}\" is not a whole number of bytes"));
    }
    let bytes = (u128::from(whole) << shift) + parts / one;
    u64::try_from(bytes).map_err(|_| too_large())
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
            ("1.5G", 3 << 29),
            ("0.25m", 256 << 10),
            ("1.0", 1),
            ("1.0009765625K", 1025),
            ("16383.5P", u64::MAX - (1 << 49) + 1),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for text in [
            "",
            "K",
            "1.5",
            "1.3K",
            ".5G",
            "1.G",
            "1.5.5G",
            "1.G5",
            "16384.5P",
            "1.0000000000000000000G",
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
