//! The models: one for each promise of a protocol.
//!
//! A model runs two or three threads on the protocol's own source. loom runs it once for
//! each order of the threads and for each value that a relaxed load may return. A broken
//! promise ends the run with a line that begins with [`VIOLATED`].
//!
//! loom does not model:
//! * load buffering: a load that returns a value which another thread stores later in its
//!   own order;
//! * stores to one word that become visible in another order than they ran in. A model that
//!   needs this says so.

mod append_window;
mod attr_cache;
mod dead;
mod extent_cache;
mod fault_range;
mod inode_lock;
mod known_room;
mod lease_view;
mod once_bits;
mod pins;
mod refs;
mod verified;

/// How a broken promise is reported.
pub const VIOLATED: &str = "VIOLATED";

/// A model, and the named orderings without which it must fail.
pub struct Model {
    /// Operation, condition, outcome.
    pub name: &'static str,
    /// Runs it; panics if a promise is broken.
    pub run: fn(),
    /// Names of orderings, as in the sources. Empty if a lock orders the threads, or if no
    /// order is needed.
    pub needs: &'static [&'static str],
}

/// Returns all models.
pub fn all() -> impl Iterator<Item = &'static Model> {
    [
        inode_lock::MODELS,
        attr_cache::MODELS,
        extent_cache::MODELS,
        refs::MODELS,
        pins::MODELS,
        dead::MODELS,
        once_bits::MODELS,
        fault_range::MODELS,
        known_room::MODELS,
        lease_view::MODELS,
        append_window::MODELS,
        verified::MODELS,
    ]
    .into_iter()
    .flatten()
}

/// Ends the run if a promise is broken.
macro_rules! promise {
    ($holds:expr, $($what:tt)+) => {
        if !$holds {
            panic!("{}: {}", $crate::models::VIOLATED, format_args!($($what)+));
        }
    };
}
use promise;

/// Runs a model in every order.
fn explore(model: impl Fn() + Sync + Send + 'static) {
    explore_bounded(None, model);
}

/// As [`explore`], with a limit of preemptions in a run.
fn explore_bounded(preemptions: Option<usize>, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.max_branches = 20_000;
    builder.check(move || {
        crate::RUNS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        model();
    });
}
