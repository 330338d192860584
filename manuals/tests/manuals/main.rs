//! Man pages, completions, the documentation site and its page on messages, against the programs
//! and the sources. One test binary: each would link all programs.

mod book;
mod completions;
mod messages;
mod pages;
mod shells;
mod troubleshooting;
