//! A table on the terminal, also written as JSON.

use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::{Map, Value};

use super::machine;

/// Rows of text under named columns.
#[derive(Debug)]
pub struct Table {
    columns: Vec<&'static str>,
    widths: Vec<usize>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Prints the head. The first column is `first` characters wide.
    pub fn new(first: usize, columns: &[&'static str]) -> Table {
        let mut widths: Vec<usize> = columns.iter().map(|c| c.len().max(9)).collect();
        if let Some(w) = widths.first_mut() {
            *w = first;
        }
        let table = Table {
            columns: columns.to_vec(),
            widths,
            rows: Vec::new(),
        };
        table.print(&columns.iter().map(|c| (*c).to_owned()).collect::<Vec<_>>());
        table
    }

    fn print(&self, cells: &[String]) {
        let mut line = String::new();
        for (i, (cell, width)) in cells.iter().zip(&self.widths).enumerate() {
            if i == 0 {
                line = format!("{cell:width$}");
            } else {
                line = format!("{line}  {cell:>width$}");
            }
        }
        println!("{}", line.trim_end());
    }

    /// Adds and prints a row.
    pub fn row(&mut self, cells: Vec<String>) {
        self.print(&cells);
        self.rows.push(cells);
    }

    /// Returns the rows.
    #[cfg(test)]
    pub fn rows(&self) -> &[Vec<String>] {
        &self.rows
    }

    /// Adds a contender that could not be measured, and why.
    pub fn cannot(&mut self, name: &str, why: &str) {
        println!(
            "{name:w$}  cannot measure: {why}",
            w = self.widths.first().copied().unwrap_or(0)
        );
        self.rows
            .push(vec![name.to_owned(), format!("cannot measure: {why}")]);
    }

    /// Writes the rows as an array of objects, each with the machine.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write_json(&self, path: &Path) -> Result<()> {
        let machine = machine::describe();
        let objects: Vec<Value> = self
            .rows
            .iter()
            .map(|r| {
                let cells = self.columns.iter().copied().zip(r.iter().map(|v| v.trim()));
                Value::Object(
                    cells
                        .chain([("machine", machine.as_str())])
                        .map(|(k, v)| (k.to_owned(), Value::String(v.to_owned())))
                        .collect::<Map<_, _>>(),
                )
            })
            .collect();
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir)?;
        }
        std::fs::write(path, serde_json::to_string_pretty(&objects)? + "\n")
            .with_context(|| path.display().to_string())?;
        println!("results: {}", path.display());
        Ok(())
    }
}
