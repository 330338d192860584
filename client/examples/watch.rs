//! Follows a file of a mount: prints its size and its first bytes whenever they change,
//! without a system call while they do not.
//!
//! ```sh
//! cargo run --example watch -- /mnt/data/log
//! ```

use std::time::Duration;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("usage: watch FILE")?;
    let file = pramfs_client::File::open(path)?;
    let mut last = None;
    loop {
        let mut head = [0; 32];
        let n = file.read_at(&mut head, 0)?;
        let now = (file.len()?, head[..n].to_vec());
        if last.as_ref() != Some(&now) {
            println!("{} bytes: {}", now.0, now.1.escape_ascii());
            last = Some(now);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
