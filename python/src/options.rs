//! Options of an opening: keyword arguments, checked here.

use pramfs::pmem::{BackendKind, Durability, Protect, RegionOptions};
use pramfs::{AtimePolicy, DataMode, ErrorPolicy, MountOptions};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// How a region is opened and mounted.
#[derive(Debug, Clone, Default)]
pub(crate) struct Options {
    pub(crate) region: RegionOptions,
    pub(crate) mount: MountOptions,
}

/// Finds a word among those that an option takes.
fn word<T: Copy>(option: &str, value: &Bound<'_, PyAny>, words: &[(&str, T)]) -> PyResult<T> {
    let given: String = value.extract()?;
    match words.iter().find(|(word, _)| *word == given) {
        Some((_, meaning)) => Ok(*meaning),
        None => {
            let known: Vec<_> = words.iter().map(|(word, _)| *word).collect();
            Err(PyValueError::new_err(format!(
                "{option}={given:?} is unknown: it is one of {}",
                known.join(", ")
            )))
        }
    }
}

impl Options {
    /// Reads the keyword arguments. `None` stands for the default.
    ///
    /// # Errors
    /// `TypeError` for an unknown option and a value of a wrong type, `ValueError` for an
    /// unknown word.
    pub(crate) fn of(given: &Bound<'_, PyDict>) -> PyResult<Options> {
        let Options {
            mut region,
            mut mount,
        } = Options::default();
        for (name, value) in given.iter() {
            if value.is_none() {
                continue;
            }
            let name: String = name.extract()?;
            match name.as_str() {
                "read_only" => {
                    let yes = value.extract()?;
                    region = region.read_only(yes);
                    mount.read_only = yes;
                }
                "require_dax" => region = region.require_dax(value.extract()?),
                "preallocate" => region = region.preallocate(value.extract()?),
                "fault_guard" => region = region.fault_guard(value.extract()?),
                "room_to_grow" => region = region.room_to_grow(value.extract()?),
                "durability" => {
                    let words = [
                        ("power", Durability::Power),
                        ("process", Durability::Process),
                    ];
                    region = region.durability(word(&name, &value, &words)?);
                }
                "backend" => {
                    let words = [
                        ("auto", BackendKind::Auto),
                        ("libpmem2", BackendKind::Libpmem2),
                        ("native", BackendKind::Native),
                    ];
                    region = region.backend(word(&name, &value, &words)?);
                }
                "protect" => {
                    let words = [
                        ("off", Protect::Off),
                        ("auto", Protect::Auto),
                        ("pkey", Protect::Pkey),
                        ("mprotect", Protect::Mprotect),
                    ];
                    region = region.protect(word(&name, &value, &words)?);
                }
                "data" => {
                    let words = [("inplace", DataMode::InPlace), ("atomic", DataMode::Atomic)];
                    mount.data = word(&name, &value, &words)?;
                }
                "errors" => {
                    let words = [
                        ("continue", ErrorPolicy::Continue),
                        ("remount-ro", ErrorPolicy::RemountRo),
                        ("panic", ErrorPolicy::Panic),
                    ];
                    mount.errors = word(&name, &value, &words)?;
                }
                "atime" => {
                    let words = [
                        ("noatime", AtimePolicy::NoAtime),
                        ("relatime", AtimePolicy::Relatime),
                        ("strictatime", AtimePolicy::StrictAtime),
                    ];
                    mount.atime = word(&name, &value, &words)?;
                }
                "cache_bytes" => mount.cache_bytes = value.extract()?,
                "discard" => mount.discard = value.extract()?,
                _ => {
                    return Err(PyTypeError::new_err(format!(
                        "{name:?} is not an option of pramfs.open"
                    )));
                }
            }
        }
        Ok(Options { region, mount })
    }
}
