//! Tables that fit the terminal: long cells are shortened, and columns left out where there is no room.

use std::io::IsTerminal;

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::output;

/// The width of a table that is written to a file or another program, in columns.
const WITHOUT_TERMINAL: usize = 100;
/// The width of the names of [`print_named`].
const NAME_WIDTH: usize = 9;
/// The space between columns.
const GAP: usize = 2;

/// A column of a table.
#[derive(Debug, Clone, Copy)]
pub struct Column {
    /// Its header.
    pub name: &'static str,
    /// What happens where there is no room.
    pub fit: Fit,
}

/// What happens to a column where there is no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fit {
    /// It stays.
    Whole,
    /// It is left out, first the columns with the lowest number.
    LeftOut(u8),
    /// Its cells are shortened in the middle to this width or more; their indentation stays.
    Middle(usize),
    /// Its cells lose their ends, down to this width; then it is left out, with the number.
    End(usize, u8),
}

impl Fit {
    fn min(self) -> Option<usize> {
        match self {
            Self::Middle(min) | Self::End(min, _) => Some(min),
            Self::Whole | Self::LeftOut(_) => None,
        }
    }

    fn order(self) -> Option<u8> {
        match self {
            Self::LeftOut(order) | Self::End(_, order) => Some(order),
            Self::Whole | Self::Middle(_) => None,
        }
    }
}

/// Columns of the terminal, or 100 if the output is none.
pub fn width() -> usize {
    if std::io::stdout().is_terminal() { terminal_width() } else { WITHOUT_TERMINAL }
}

/// Columns of the terminal. A file or another program gets whole names.
fn width_or_whole() -> usize {
    if std::io::stdout().is_terminal() { terminal_width() } else { usize::MAX }
}

fn terminal_width() -> usize {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok().map(|size| usize::from(size.ws_col));
    size.filter(|columns| *columns > 0).unwrap_or(WITHOUT_TERMINAL)
}

/// Prints a table that fits the terminal; without one it is whole.
///
/// # Errors
/// It cannot be written.
pub fn print(columns: &[Column], rows: Vec<Vec<String>>) -> anyhow::Result<()> {
    output::write(table(columns, rows, width_or_whole()).as_bytes())
}

/// Prints texts with their names, such as `memory    12 MiB`; the further lines of a text are indented.
///
/// # Errors
/// They cannot be written.
pub fn print_named(texts: &[(&str, String)]) -> anyhow::Result<()> {
    let width = width_or_whole();
    let text: String = texts.iter().map(|(name, text)| named(name, text, width)).collect();
    output::write(text.as_bytes())
}

fn named(name: &str, text: &str, width: usize) -> String {
    let first = format!("{name:<NAME_WIDTH$} ");
    let text = output::line(text);
    if width == usize::MAX {
        return format!("{first}{text}\n");
    }
    let further = " ".repeat(first.width());
    let options = textwrap::Options::new(width).initial_indent(&first).subsequent_indent(&further);
    let options = options.word_separator(textwrap::WordSeparator::AsciiSpace);
    textwrap::fill(&text, options.word_splitter(textwrap::WordSplitter::NoHyphenation)) + "\n"
}

/// A table of at most `width` columns, if its whole columns fit. Columns without a text are left out, but if there is room for all:
/// who reads a pipe counts them.
pub fn table(columns: &[Column], rows: Vec<Vec<String>>, width: usize) -> String {
    let mut rows: Vec<Vec<String>> =
        rows.into_iter().map(|row| row.iter().map(|cell| output::line(cell)).collect()).collect();
    let mut columns = columns.to_vec();
    for at in (0..columns.len()).rev() {
        let is_empty = width < usize::MAX
            && !rows.is_empty()
            && rows.iter().all(|row| row.get(at).is_none_or(String::is_empty));
        if is_empty && columns.get(at).is_some_and(|column| column.fit != Fit::Whole) {
            remove(&mut columns, &mut rows, at);
        }
    }
    let widths = loop {
        match widths(&columns, &rows, width) {
            Some(widths) => break widths,
            None => {
                let order = |(_, column): &(usize, &Column)| column.fit.order();
                let first = columns.iter().enumerate().filter(|column| order(column).is_some());
                match first.min_by_key(order).map(|(at, _)| at) {
                    Some(at) => remove(&mut columns, &mut rows, at),
                    // The terminal is too narrow for any table.
                    None => break columns.iter().map(|column| column.fit.min().unwrap_or(width)).collect(),
                }
            }
        }
    };
    for row in &mut rows {
        for ((cell, column), max) in row.iter_mut().zip(&columns).zip(&widths) {
            *cell = match column.fit {
                Fit::Middle(_) => shortened(cell, *max),
                Fit::End(..) => start(cell, *max),
                Fit::Whole | Fit::LeftOut(_) => std::mem::take(cell),
            };
        }
    }
    let header: Vec<&str> = columns.iter().map(|column| column.name).collect();
    output::table_text(&header, rows)
}

fn remove(columns: &mut Vec<Column>, rows: &mut [Vec<String>], at: usize) {
    columns.remove(at);
    for row in rows {
        if at < row.len() {
            row.remove(at);
        }
    }
}

/// The widths of the columns; `None` if they do not fit. The widest are shortened first.
fn widths(columns: &[Column], rows: &[Vec<String>], width: usize) -> Option<Vec<usize>> {
    let widest = |(at, column): (usize, &Column)| {
        let cells = rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.width());
        cells.chain([column.name.width()]).max().unwrap_or(0)
    };
    let mut widths: Vec<usize> = columns.iter().enumerate().map(widest).collect();
    let room = width.saturating_sub(GAP * columns.len().saturating_sub(1));
    loop {
        let over = widths.iter().sum::<usize>().saturating_sub(room);
        if over == 0 {
            return Some(widths);
        }
        let shrinks = widths.iter_mut().zip(columns).filter_map(|(width, column)| {
            let min = column.fit.min()?.max(column.name.width());
            (*width > min).then_some((width, min))
        });
        let (widest, _) = shrinks.max_by_key(|(width, _)| **width)?;
        *widest -= 1;
    }
}

/// The first characters of a text, at most `max` columns with a mark.
fn start(text: &str, max: usize) -> String {
    if text.width() <= max {
        return text.to_owned();
    }
    format!("{}…", taken(text.chars(), max.saturating_sub(1)).into_iter().collect::<String>())
}

/// The start and the end of a text, at most `max` columns with its indentation.
fn shortened(text: &str, max: usize) -> String {
    if text.width() <= max {
        return text.to_owned();
    }
    let name = text.trim_start_matches(' ');
    // Half of the room is for the name.
    let indent = (text.len() - name.len()).min(max / 2);
    let room = max - indent;
    if name.width() <= room {
        return format!("{}{name}", " ".repeat(indent));
    }
    let left = room.saturating_sub(1);
    let head: String = taken(name.chars(), left.div_ceil(2)).into_iter().collect();
    let tail: String = taken(name.chars().rev(), left / 2).into_iter().rev().collect();
    format!("{}{head}…{tail}", " ".repeat(indent))
}

/// The first characters, at most `max` columns.
fn taken(chars: impl Iterator<Item = char>, max: usize) -> Vec<char> {
    let mut used = 0;
    chars
        .take_while(|character| {
            used += character.width().unwrap_or(0);
            used <= max
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_keeps_its_start_and_its_end() {
        assert_eq!(shortened("    function measurements", 16), "    functi…ments");
        assert_eq!(shortened("f", 16), "f");
        assert_eq!(shortened(&format!("{}function f", " ".repeat(24)), 20), "          function f");
        assert_eq!(shortened("温度温度温度温度", 9), "温度…温度");
        assert_eq!(start("{\"n\": 12345}", 8), "{\"n\": 1…");
    }

    #[test]
    fn a_long_text_goes_on_below_its_start() {
        let text = format!("12 MiB of 温度 and {}\n", "ab:".repeat(29));
        let lines = named("memory", &text, 40);
        assert!(lines.starts_with("memory    12 MiB of 温度 and\n          ab:ab:"), "{lines}");
        assert!(lines.lines().all(|line| line.width() <= 40) && lines.lines().count() == 4, "{lines}");
        assert!(
            lines.lines().skip(1).all(|line| line.starts_with("          a")
                || line.starts_with("          b")
                || line.starts_with("          :")),
            "{lines}"
        );
        assert_eq!(named("a", "b c", usize::MAX), "a         b c\n");
    }
}
