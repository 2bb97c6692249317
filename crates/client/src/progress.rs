//! Spinners on stderr if it is a terminal; otherwise one line for each step.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// A step that may take a while. A drop removes it from the terminal.
pub struct Step(ProgressBar);

impl Step {
    /// Starts to show a step, such as "Building average".
    pub fn start(message: impl Into<String>) -> Self {
        let message = message.into();
        if !std::io::stderr().is_terminal() {
            eprintln!("{message}");
            return Self(ProgressBar::hidden());
        }
        let style = ProgressStyle::with_template("{spinner} {prefix}  {wide_msg:.dim}");
        let bar = ProgressBar::new_spinner()
            .with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()))
            .with_prefix(message);
        bar.enable_steady_tick(Duration::from_millis(100));
        Self(bar)
    }

    /// Shows the progress.
    pub fn detail(&self, text: impl Into<String>) {
        self.0.set_message(text.into());
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
