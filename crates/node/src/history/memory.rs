//! Memory of warnings: since when there are which ones.

use std::collections::HashMap;

use super::events::{Happened, Kind};
use super::warnings::{Code, Warning};

/// Looks in a row without a warning after which it is over: 30 seconds. A warning that comes and goes is one.
const OVER_AFTER: u32 = 6;

/// The warnings of the last look, and those that were there shortly before.
#[derive(Debug, Default)]
pub struct WarningMemory {
    known: HashMap<(Code, String), Known>,
}

#[derive(Debug)]
struct Known {
    since_unix_ms: u64,
    /// Of the last look at which it was there.
    text: String,
    /// Looks without it, in a row.
    absent: u32,
}

impl WarningMemory {
    /// Takes the warnings that there are now; returns those that began and that are over as events.
    pub fn see(&mut self, now_unix_ms: u64, warnings: Vec<Warning>) -> Vec<Happened> {
        let mut happened = Vec::new();
        self.known.values_mut().for_each(|known| known.absent += 1);
        for Warning { code, subject, text, .. } in warnings {
            let known = self.known.entry((code, subject)).or_insert_with_key(|(code, _)| {
                happened.push(event(Kind::Warning, *code, &text));
                Known { since_unix_ms: now_unix_ms, text: String::new(), absent: 0 }
            });
            (known.text, known.absent) = (text, 0);
        }
        self.known.retain(|(code, _), known| {
            let is_over = known.absent >= OVER_AFTER;
            if is_over {
                happened.push(event(Kind::WarningOver, *code, &known.text));
            }
            !is_over
        });
        happened
    }

    /// Since when there is this warning, in milliseconds since the Unix epoch; `None` if it is new.
    pub fn since(&self, warning: &Warning) -> Option<u64> {
        let known = self.known.get(&(warning.code, warning.subject.clone()))?;
        Some(known.since_unix_ms)
    }
}

fn event(kind: Kind, code: Code, text: &str) -> Happened {
    Happened { kind, subject: code.to_string(), text: text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::warnings::Severity;

    #[test]
    fn a_warning_that_comes_and_goes_is_one() {
        let hot = |text: &str| Warning {
            severity: Severity::Caution,
            code: Code::BoardHot,
            subject: String::new(),
            app: String::new(),
            secrets: Vec::new(),
            text: text.into(),
            remedy: "cool it".into(),
        };
        let mut memory = WarningMemory::default();
        assert_eq!(memory.since(&hot("80")), None);
        let began = memory.see(7, vec![hot("80")]);
        let event = |kind, text: &str| Happened { kind, subject: "board-hot".into(), text: text.into() };
        assert_eq!(began, [event(Kind::Warning, "80")]);
        for now in 8..13 {
            assert_eq!(memory.see(now, Vec::new()), []);
        }
        assert_eq!(memory.see(13, vec![hot("81")]), []);
        assert_eq!(memory.since(&hot("82")), Some(7));
        for now in 14..19 {
            assert_eq!(memory.see(now, Vec::new()), []);
        }
        assert_eq!(memory.see(19, Vec::new()), [event(Kind::WarningOver, "81")]);
        assert_eq!(memory.since(&hot("82")), None);
        let other = Warning { subject: "f".into(), ..hot("83") };
        assert_eq!(memory.see(20, vec![other.clone()]), [event(Kind::Warning, "83")]);
        assert_eq!((memory.since(&other), memory.since(&hot("83"))), (Some(20), None));
    }
}
