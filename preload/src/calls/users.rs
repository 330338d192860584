//! setuid(2) and its relatives: a program that gives its rights away keeps no lease, with which it
//! could go on reading or writing the whole region.

use std::ffi::{c_int, c_long};

use libc::uid_t;

use crate::{lease, real};

/// "As it is", for setreuid(2) and setresuid(2).
const SAME: uid_t = uid_t::MAX;

/// The users of a thread: real, effective, saved.
type Users = [uid_t; 3];

fn users() -> Option<Users> {
    let mut users: Users = [0; 3];
    let [real, effective, saved] = &mut users;
    // SAFETY: the users are written to variables of this type.
    let done = unsafe { libc::getresuid(real, effective, saved) };
    (done == 0).then_some(users)
}

fn or(new: uid_t, now: uid_t) -> uid_t {
    if new == SAME { now } else { new }
}

/// Called before a change of the users. If one is given away, so are the leases. A user that stays
/// saved can come back: then they stay.
fn change(after: impl FnOnce(Users) -> Users) {
    let errno = real::errno();
    if let Some(now) = lease::may_have_any().then(users).flatten() {
        let after = after(now);
        if now.iter().any(|user| !after.contains(user)) {
            lease::drop_rights();
        }
    }
    real::set_errno(errno);
}

fn by_setuid(user: uid_t) -> impl FnOnce(Users) -> Users {
    move |[real, effective, saved]| match effective {
        0 => [user; 3],
        _ => [real, user, saved],
    }
}

fn by_setreuid(real: uid_t, effective: uid_t) -> impl FnOnce(Users) -> Users {
    move |now| {
        let new = [or(real, now[0]), or(effective, now[1])];
        let saves = real != SAME || effective != SAME && effective != now[0];
        [new[0], new[1], if saves { new[1] } else { now[2] }]
    }
}

fn by_setresuid(new: Users) -> impl FnOnce(Users) -> Users {
    move |now| [or(new[0], now[0]), or(new[1], now[1]), or(new[2], now[2])]
}

/// Called before a system call of this number that changes users.
pub(super) fn change_by(number: c_long, a: c_long, b: c_long, c: c_long) {
    let (a, b, c) = (a as uid_t, b as uid_t, c as uid_t);
    match number {
        libc::SYS_setuid => change(by_setuid(a)),
        libc::SYS_setreuid => change(by_setreuid(a, b)),
        libc::SYS_setresuid => change(by_setresuid([a, b, c])),
        _ => {}
    }
}

/// setuid(2).
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn setuid(user: uid_t) -> c_int {
    change(by_setuid(user));
    // SAFETY: the arguments are those of the program.
    unsafe { real::setuid(user) }
}

/// setreuid(2).
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn setreuid(real: uid_t, effective: uid_t) -> c_int {
    change(by_setreuid(real, effective));
    // SAFETY: the arguments are those of the program.
    unsafe { real::setreuid(real, effective) }
}

/// setresuid(2).
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn setresuid(real: uid_t, effective: uid_t, saved: uid_t) -> c_int {
    change(by_setresuid([real, effective, saved]));
    // SAFETY: the arguments are those of the program.
    unsafe { real::setresuid(real, effective, saved) }
}
