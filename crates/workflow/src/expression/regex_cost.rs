//! Cost of a regular expression for each byte of text: approximately its number of states. The regex library may visit all
//! states for each byte, and a search cannot be interrupted.

/// Maximum size of the text, in bytes. All matches in the text are in memory at the same time.
pub(super) const TEXT_BYTES: usize = 256 << 10;
/// Maximum number of states.
const MAX_STATES: u64 = 50_000;

/// The estimated number of states of a regular expression exceeds the maximum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the regular expression is too large: about {states} states of at most {MAX_STATES}; repeat less in it"
)]
pub(super) struct RegexTooLarge {
    states: u64,
}

/// An upper estimate of the number of states of `pattern`.
///
/// # Errors
/// The estimate exceeds [`MAX_STATES`].
pub(super) fn of(pattern: &str) -> Result<u64, RegexTooLarge> {
    let mut states: u64 = 1;
    let mut times: u64 = 1;
    let mut counting: Option<u64> = None;
    for c in pattern.chars() {
        counting = match (counting, c) {
            (_, '{') => Some(0),
            (Some(count), digit @ '0'..='9') => {
                Some(count.saturating_mul(10).saturating_add(u64::from(digit) - u64::from('0')))
            }
            (Some(count), ',' | '}') => {
                times = times.saturating_mul(count.max(1));
                (c == ',').then_some(0)
            }
            (Some(_), ' ') => counting,
            _ => None,
        };
        // A class such as `\w` or `.` takes many states, since Unicode has many letters.
        states += match c {
            '\\' | '[' => 64,
            '.' => 16,
            _ => 1,
        };
    }
    let states = states.saturating_mul(times);
    if states > MAX_STATES {
        return Err(RegexTooLarge { states });
    }
    Ok(states)
}
