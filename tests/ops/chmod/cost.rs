//! What chmod costs: fences, lines and bytes.

use pramfs::XattrMode;
use pramfs::inode::{Credentials, SetAttr};
use pramfs_medium::journal::set_thread_lane;

use crate::support::cost::{ACCESS, OPS, Row, acl, hold, row};

/// Two threads that alternate on one inode: each on a fixed lane, or like threads of a
/// server.
fn turns_row(name: &'static str, fences: u64, lanes: Option<[u32; 2]>) -> Row {
    let mut row = row(name, fences as f64, fences, |b| {
        let f = b.file(b"f");
        let (fs, sim, cost) = (&b.fs, &b.sim, &mut b.cost);
        let (to_second, second) = std::sync::mpsc::sync_channel::<u32>(0);
        let (to_first, first) = std::sync::mpsc::sync_channel::<()>(0);
        let chmod = |perm: u32| {
            let set = SetAttr {
                perm: Some(perm),
                ..SetAttr::default()
            };
            fs.setattr(&Credentials::ROOT, f, &set).unwrap();
        };
        let choose = move |who: usize| {
            if let Some(lanes) = lanes {
                set_thread_lane(lanes[who]);
            }
        };
        std::thread::scope(|s| {
            s.spawn(move || {
                choose(1);
                for perm in second {
                    chmod(perm);
                    to_first.send(()).unwrap();
                }
            });
            // In a new thread, since the lane of this one is already chosen.
            s.spawn(move || {
                choose(0);
                chmod(0);
                for i in 0..OPS / 2 {
                    let before = sim.counters();
                    to_second.send((i & 0o777) as u32).unwrap();
                    first.recv().unwrap();
                    cost.add(sim.counters() - before);
                    let before = sim.counters();
                    chmod((i & 0o777) as u32);
                    cost.add(sim.counters() - before);
                }
                drop(to_second);
            });
        });
    });
    // The counter does not see that the other thread has changed the line.
    row.cost.total.redundant_flushes = 0;
    row
}

#[test]
fn chmod_stays_within_fence_budget() {
    hold(&[
        row("chmod", 1.0, 1, |b| {
            let f = b.file(b"f");
            for i in 0..OPS {
                let set = SetAttr {
                    perm: Some(0o600 | (i & 0o77) as u32),
                    ..SetAttr::default()
                };
                b.count(|fs| fs.setattr(&Credentials::ROOT, f, &set));
            }
        }),
        row("chmod of a file with an ACL", 1.0, 1, |b| {
            let f = b.file(b"f");
            b.fs.setxattr(&Credentials::ROOT, f, ACCESS, &acl(0), XattrMode::Set)
                .unwrap();
            for i in 0..OPS {
                let set = SetAttr {
                    perm: Some(0o600 | (i & 0o77) as u32),
                    ..SetAttr::default()
                };
                b.count(|fs| fs.setattr(&Credentials::ROOT, f, &set));
            }
        }),
        turns_row("chmod of one inode by two threads in turn", 1, None),
        turns_row("the same, each on a lane of its own", 3, Some([0, 1])),
    ]);
}
