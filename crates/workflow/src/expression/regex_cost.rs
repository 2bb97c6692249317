//! What a regular expression costs for each byte of text: about as many states as it may have. The library
//! that runs them goes through all of those for each byte and cannot be interrupted.

/// The longest text, in bytes. All matches in it are in memory at once.
pub(super) const TEXT_BYTES: usize = 256 << 10;
/// States beyond which a regular expression is refused.
const STATES: u64 = 50_000;

/// States of `pattern`, too many rather than too few. Err: what is wrong with it.
pub(super) fn of(pattern: &str) -> Result<u64, String> {
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
        // A class such as `\w` or `.` is many states, for Unicode has many letters.
        states += match c {
            '\\' | '[' => 64,
            '.' => 16,
            _ => 1,
        };
    }
    let states = states.saturating_mul(times);
    if states > STATES {
        return Err(format!(
            "the regular expression is too large: about {states} states of at most {STATES}; repeat less in it"
        ));
    }
    Ok(states)
}
