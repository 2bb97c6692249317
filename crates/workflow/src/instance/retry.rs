//! `try`, `catch` and trying again.

use std::sync::Arc;

use serde_json::Value;

use super::action::NoteKind;
use super::event::FrameId;
use super::frame::{Phase, State};
use super::run::Run;
use crate::data::Data;
use crate::error::{ErrorKind, WorkflowError, type_name};
use crate::expression::Expression;
use crate::program::{Backoff, Retry, Try};

/// The maximum delay: about ten years. Longer delays are cut to it.
const MAX_DELAY_MS: f64 = 10.0 * 366.0 * 86_400_000.0;

/// True if `wanted` names the type `found`: as it is, in the other spelling of the specification, or without its beginning.
fn is_type(found: &str, wanted: &str) -> bool {
    if found == wanted {
        return true;
    }
    match (type_name(found), type_name(wanted)) {
        (Some(found), Some(wanted)) => found == wanted,
        _ => found.strip_suffix(wanted).is_some_and(|beginning| beginning.ends_with('/')),
    }
}

impl Run<'_> {
    /// Begins the block of a `try`.
    pub(super) fn attempt(&mut self, id: FrameId, tried: &Try) -> Result<(), WorkflowError> {
        let Some(frame) = self.frame(id) else { return Ok(()) };
        let (parent, input) = (frame.parent, frame.input.clone());
        let limit = tried.retry.as_ref().and_then(|retry| retry.attempt_duration.as_ref());
        let limit_ms = limit.map(|limit| self.duration(limit, parent, &input)).transpose()?;
        let due_ms = limit_ms.map(|ms| self.environment.now_ms.saturating_add(ms));
        if let Some(frame) = self.frame_mut(id) {
            frame.due_ms = due_ms;
            if let State::Try(trying) = &mut frame.state {
                trying.phase = Phase::Trying;
            }
        }
        self.enter_list(id, 0, input);
        Ok(())
    }

    /// True if a `try` catches an error.
    pub(super) fn catches(
        &self,
        id: FrameId,
        tried: &Try,
        error: &WorkflowError,
    ) -> Result<bool, WorkflowError> {
        let data = error.to_data();
        let error = error.to_json();
        let same = |name: &str, wanted: &Value| match (error.get(name), wanted) {
            (Some(Value::String(found)), Value::String(wanted)) if name == "type" => is_type(found, wanted),
            (Some(found), wanted) => found == wanted,
            (None, _) => false,
        };
        if !tried.with.iter().all(|(name, wanted)| same(name, wanted)) {
            return Ok(false);
        }
        self.decide(id, &tried.variable, &data, tried.when.as_ref(), tried.except_when.as_ref())
    }

    fn decide(
        &self,
        id: FrameId,
        variable: &str,
        error: &Data,
        when: Option<&Expression>,
        except_when: Option<&Expression>,
    ) -> Result<bool, WorkflowError> {
        if when.is_none() && except_when.is_none() {
            return Ok(true);
        }
        let Some(frame) = self.frame(id) else { return Ok(false) };
        let mut scope = self.frame_scope(frame);
        let extra = [(variable, error), ("error", error)];
        scope.extra = &extra;
        let yes = when.map_or(Ok(true), |when| scope.is_true(when, &frame.input))?;
        Ok(yes && !except_when.map_or(Ok(false), |when| scope.is_true(when, &frame.input))?)
    }

    /// Retries, or continues with the handler of `catch`, or after the `try` if there is no handler.
    ///
    /// # Errors
    /// The error itself, if no retry is left and nothing handles it.
    pub(super) fn caught(
        &mut self,
        id: FrameId,
        tried: &Try,
        error: &WorkflowError,
    ) -> Result<(), WorkflowError> {
        let value = error.to_data();
        if let Some(retry) = &tried.retry
            && let Some(delay_ms) = self.next_attempt(id, tried, retry, &value)?
        {
            let now_ms = self.environment.now_ms;
            let node = self.frame(id).and_then(|frame| frame.node);
            self.note(NoteKind::Retried, id, node, &value);
            let Some(frame) = self.frame_mut(id) else { return Ok(()) };
            let State::Try(trying) = &mut frame.state else { return Ok(()) };
            trying.failed += 1;
            if delay_ms == 0 {
                return self.attempt(id, tried);
            }
            trying.phase = Phase::WaitingToRetry;
            frame.due_ms = Some(now_ms.saturating_add(delay_ms));
            return Ok(());
        }
        let (again, handles) = (tried.retry.is_some(), tried.handler.is_some());
        let Some(frame) = self.frame_mut(id) else { return Ok(()) };
        frame.due_ms = None;
        let input = frame.input.clone();
        match (handles, again) {
            (true, _) => {
                frame.variables = vec![(Arc::from(tried.variable.as_str()), value)];
                if let State::Try(trying) = &mut frame.state {
                    trying.phase = Phase::Handling;
                }
                self.enter_list(id, 0, input);
                Ok(())
            }
            (false, true) => Err(error.clone()),
            (false, false) => {
                self.finish_frame(id, input, None);
                Ok(())
            }
        }
    }

    /// The delay before the next attempt; `None` if there is no next attempt.
    fn next_attempt(
        &mut self,
        id: FrameId,
        tried: &Try,
        retry: &Retry,
        error: &Data,
    ) -> Result<Option<u64>, WorkflowError> {
        if !self.decide(id, &tried.variable, error, retry.when.as_ref(), retry.except_when.as_ref())? {
            return Ok(None);
        }
        let Some(frame) = self.frame(id) else { return Ok(None) };
        let State::Try(trying) = &frame.state else { return Ok(None) };
        let (failed, since_ms) = (trying.failed, trying.since_ms);
        if retry.max_attempts.is_some_and(|max| failed >= max) {
            return Ok(None);
        }
        let (parent, input) = (frame.parent, frame.input.clone());
        let base_ms = self.duration(&retry.delay, parent, &input)? as f64;
        let grown_ms = match retry.backoff {
            Backoff::Constant => base_ms,
            Backoff::Linear(increment) => {
                base_ms + increment.map_or(base_ms, |ms| ms as f64) * f64::from(failed)
            }
            Backoff::Exponential(factor) => base_ms * factor.powi(failed.min(1000) as i32),
        };
        let mut delay_ms = grown_ms.clamp(0.0, MAX_DELAY_MS) as u64;
        if let Some((from, to)) = &retry.jitter {
            let (from, to) = (self.duration(from, parent, &input)?, self.duration(to, parent, &input)?);
            delay_ms = delay_ms.saturating_add(from + self.chance(to.saturating_sub(from)));
        }
        if let Some(limit) = &retry.max_duration {
            let limit_ms = self.duration(limit, parent, &input)?;
            let spent_ms = self.environment.now_ms.saturating_sub(since_ms);
            if spent_ms.saturating_add(delay_ms) > limit_ms {
                return Ok(None);
            }
        }
        Ok(Some(delay_ms))
    }

    /// A pseudo-random number from 0 to `max`, reproducible from the instance's seed (SplitMix64; Steele, Lea, Flood
    /// 2014).
    fn chance(&mut self, max: u64) -> u64 {
        self.instance.seed = self.instance.seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.instance.seed;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^= mixed >> 31;
        mixed % max.saturating_add(1)
    }

    /// The delay before an attempt has ended, or an attempt has exceeded its time limit.
    pub(super) fn retry_due(&mut self, id: FrameId, tried: &Try) {
        let Some(frame) = self.frame(id) else { return };
        let State::Try(trying) = &frame.state else { return };
        let outcome = match trying.phase {
            Phase::WaitingToRetry => self.attempt(id, tried),
            Phase::Trying => {
                self.cancel_below(Some(id));
                let error = WorkflowError::new(ErrorKind::Timeout, "the attempt took too long");
                let path = self
                    .frame(id)
                    .and_then(|frame| frame.node)
                    .map(|node| self.program.node(node).path.clone());
                let error = error.at(path.as_deref().unwrap_or("/"));
                match self.catches(id, tried, &error) {
                    Ok(true) => self.caught(id, tried, &error),
                    Ok(false) => Err(error),
                    Err(error) => Err(error),
                }
            }
            Phase::Handling => Ok(()),
        };
        if let Err(error) = outcome {
            self.rethrow(id, error);
        }
    }
}
