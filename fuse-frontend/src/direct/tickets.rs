//! Tickets: rights to one lease each, for one use within a few seconds.
//!
//! Invariant: a ticket is accepted once, before it expires, from the user who asked for
//! it. The number of tickets in memory is bounded.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use pramfs::inode::{Ino, LeaseMode};
use pramfs_control::{Refusal, Refused, Ticket};

/// How long a ticket is valid.
pub(super) const VALID: Duration = Duration::from_secs(10);
/// Tickets of one user that are not redeemed; a further one ends the oldest.
pub(super) const OF_USER: usize = 16;
/// Tickets in all.
const ALL: usize = 1024;

/// What a ticket is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Claim {
    /// The file.
    pub ino: Ino,
    /// Its generation.
    pub generation: u64,
    /// What the file is open for.
    pub mode: LeaseMode,
    /// The user who has it open.
    pub uid: u32,
}

#[derive(Debug)]
struct Issued {
    ticket: Ticket,
    claim: Claim,
    until: Instant,
}

/// The tickets that are not redeemed, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Tickets(VecDeque<Issued>);

impl Tickets {
    /// Issues a ticket. Those of root and of `owner`, who owns the region, outlast a flood of
    /// tickets for other users.
    ///
    /// # Errors
    /// The system gives no random numbers.
    pub(super) fn issue(
        &mut self,
        claim: Claim,
        owner: u32,
        now: Instant,
    ) -> Result<Ticket, Refused> {
        self.0.retain(|issued| issued.until > now);
        let of_user = |issued: &Issued| issued.claim.uid == claim.uid;
        if self.0.iter().filter(|issued| of_user(issued)).count() >= OF_USER
            && let Some(oldest) = self.0.iter().position(of_user)
        {
            self.0.remove(oldest);
        }
        if self.0.len() >= ALL {
            let of_others = |issued: &Issued| ![0, owner].contains(&issued.claim.uid);
            let oldest = self.0.iter().position(of_others).unwrap_or(0);
            self.0.remove(oldest);
        }
        let mut random = [0; 16];
        let filled = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty());
        if filled != Ok(random.len()) {
            return Err(Refused::new(
                Refusal::System,
                "the system gives no random numbers",
            ));
        }
        let ticket = Ticket(random);
        self.0.push_back(Issued {
            ticket,
            claim,
            until: now + VALID,
        });
        Ok(ticket)
    }

    /// Takes a ticket back, for the lease that it is good for. A ticket of another user
    /// stays valid for its owner.
    ///
    /// # Errors
    /// It is unknown, used, expired, or another user's; the answer does not tell which.
    pub(super) fn redeem(
        &mut self,
        ticket: Ticket,
        uid: u32,
        now: Instant,
    ) -> Result<Claim, Refused> {
        self.0.retain(|issued| issued.until > now);
        let found = self
            .0
            .iter()
            .position(|issued| issued.ticket == ticket && issued.claim.uid == uid);
        match found.and_then(|at| self.0.remove(at)) {
            Some(issued) => Ok(issued.claim),
            None => Err(Refused::new(
                Refusal::Ticket,
                "the ticket is unknown, used, expired or another user's; ask for a new one",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: u32 = 500;
    const CLAIM: Claim = Claim {
        ino: Ino(77),
        generation: 5,
        mode: LeaseMode::Read,
        uid: 1000,
    };

    fn other() -> Claim {
        Claim { uid: 1001, ..CLAIM }
    }

    #[test]
    fn ticket_is_accepted_once() {
        let (mut tickets, now) = (Tickets::default(), Instant::now());
        let ticket = tickets.issue(CLAIM, OWNER, now).unwrap();
        assert_eq!(tickets.redeem(ticket, 1000, now), Ok(CLAIM));
        let again = tickets.redeem(ticket, 1000, now).unwrap_err();
        assert_eq!(again.reason, Refusal::Ticket);
    }

    #[test]
    fn ticket_of_other_user_is_refused_and_stays_valid() {
        let (mut tickets, now) = (Tickets::default(), Instant::now());
        let ticket = tickets.issue(CLAIM, OWNER, now).unwrap();
        assert!(tickets.redeem(ticket, 1001, now).is_err());
        assert!(tickets.redeem(ticket, 0, now).is_err());
        assert!(tickets.redeem(ticket, 1000, now).is_ok());
    }

    #[test]
    fn expired_and_forged_tickets_are_refused() {
        let (mut tickets, now) = (Tickets::default(), Instant::now());
        let ticket = tickets.issue(CLAIM, OWNER, now).unwrap();
        let mut forged = ticket;
        forged.0[15] ^= 1;
        assert!(tickets.redeem(forged, 1000, now).is_err());
        assert!(tickets.redeem(ticket, 1000, now + VALID).is_err());
        assert!(tickets.redeem(ticket, 1000, now).is_err(), "it has expired");
    }

    #[test]
    fn further_ticket_ends_oldest_of_same_user() {
        let (mut tickets, now) = (Tickets::default(), Instant::now());
        let theirs = tickets.issue(other(), OWNER, now).unwrap();
        let all: Vec<_> = (0..OF_USER + 2)
            .map(|_| tickets.issue(CLAIM, OWNER, now).unwrap())
            .collect();
        assert_eq!(tickets.0.len(), OF_USER + 1);
        assert!(tickets.redeem(all[1], 1000, now).is_err());
        assert!(tickets.redeem(all[2], 1000, now).is_ok());
        assert!(tickets.redeem(theirs, 1001, now).is_ok());
    }

    #[test]
    fn tickets_of_many_users_are_bounded() {
        let (mut tickets, now) = (Tickets::default(), Instant::now());
        let of = |uid| Claim { uid, ..CLAIM };
        let [root, owner] = [0, OWNER].map(|uid| tickets.issue(of(uid), OWNER, now).unwrap());
        for uid in 2000..4000 {
            tickets.issue(Claim { uid, ..CLAIM }, OWNER, now).unwrap();
        }
        assert_eq!(tickets.0.len(), ALL);
        assert!(tickets.redeem(root, 0, now).is_ok());
        assert!(tickets.redeem(owner, OWNER, now).is_ok());
    }
}
