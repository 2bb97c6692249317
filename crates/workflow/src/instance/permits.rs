//! Effects that the host refuses: messages that may not be sent, and secrets that are not there.
//!
//! The answer of the host may be another one later: permissions and secrets change. So the instance remembers what was refused
//! in a turn ([`Instance::refused`]), the host stores it with the event, and a repeated turn has the same refusals.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::action::Outgoing;
use super::run::Run;
use super::state::Instance;
use crate::data::kind_of;
use crate::error::{ErrorKind, WorkflowError};
use crate::program::NodeId;

/// The rule by which the effect of a task is refused.
#[derive(Clone, Copy)]
pub enum Permits<'a> {
    /// The host is asked before each message. A task that names a secret that [`Environment::secrets`] lacks is refused.
    ///
    /// [`Environment::secrets`]: super::Environment::secrets
    Asked(&'a dyn Fn(&Outgoing) -> Result<(), WorkflowError>),
    /// A recorded turn is repeated: these effects are refused, and no other.
    Recorded(&'a [Refused]),
}

/// An effect that was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// The kind of the effect.
    pub effect: Effect,
    /// The number of its task: [`Instance::steps`] when the task began.
    pub step: u64,
    /// The error of the task.
    pub error: WorkflowError,
}

/// The kinds of effects that can be refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// An `emit` task or a `call: asyncapi` sends a message.
    Send,
    /// Expressions of the task read a secret.
    ReadSecret,
    /// Expressions of the workflow itself read a secret.
    ReadSecretOfWorkflow,
}

fn allow_any(_: &Outgoing) -> Result<(), WorkflowError> {
    Ok(())
}

impl Permits<'static> {
    /// All messages may be sent.
    pub const ANY_MESSAGE: Self = Self::Asked(&allow_any);
}

impl fmt::Debug for Permits<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Asked(_) => out.write_str("Asked"),
            Self::Recorded(refused) => out.debug_tuple("Recorded").field(refused).finish(),
        }
    }
}

impl Instance {
    /// The effects that were refused in the last turn.
    pub fn refused(&self) -> &[Refused] {
        &self.refused_effects
    }
}

impl Run<'_> {
    /// # Errors
    /// The message may not be sent.
    pub(super) fn may_send(&mut self, outgoing: &Outgoing) -> Result<(), WorkflowError> {
        match self.environment.permits {
            Permits::Asked(host) => match host(outgoing) {
                Ok(()) => Ok(()),
                Err(error) => Err(self.refuse(Effect::Send, error)),
            },
            Permits::Recorded(refused) => self.repeated(refused, Effect::Send),
        }
    }

    /// The topic that an expression gives.
    ///
    /// # Errors
    /// The value is not text. A turn that an earlier version recorded is repeated as it was.
    pub(super) fn topic(&mut self, value: Value) -> Result<String, WorkflowError> {
        if let Value::String(topic) = value {
            return Ok(topic);
        }
        match self.environment.permits {
            Permits::Asked(_) => {
                let detail = format!("the topic is text, not {}", kind_of(&value));
                let error = WorkflowError::new(ErrorKind::Validation, detail);
                Err(self.refuse(Effect::Send, error))
            }
            Permits::Recorded(refused) => self.repeated(refused, Effect::Send).map(|()| value.to_string()),
        }
    }

    /// # Errors
    /// Expressions of the task name a secret that is not there.
    pub(super) fn may_read_secrets(&mut self, id: NodeId) -> Result<(), WorkflowError> {
        self.may_read(&self.program.node(id).secrets, Effect::ReadSecret)
    }

    /// # Errors
    /// A secret is not there that an expression of the workflow itself names; `named` are all that it names.
    pub(super) fn may_read_as_workflow(&mut self, named: &[String]) -> Result<(), WorkflowError> {
        self.may_read(named, Effect::ReadSecretOfWorkflow)
    }

    fn may_read(&mut self, named: &[String], effect: Effect) -> Result<(), WorkflowError> {
        if named.is_empty() {
            return Ok(());
        }
        match self.environment.permits {
            Permits::Asked(_) => {
                let secrets = self.environment.secrets;
                match self.program.missing_of(named, &|name| secrets.get(name).is_some()) {
                    None => Ok(()),
                    Some(error) => Err(self.refuse(effect, error)),
                }
            }
            Permits::Recorded(refused) => self.repeated(refused, effect),
        }
    }

    fn refuse(&mut self, effect: Effect, error: WorkflowError) -> WorkflowError {
        let step = self.instance.steps;
        self.instance.refused_effects.push(Refused { effect, step, error: error.clone() });
        error
    }

    fn repeated(&self, refused: &[Refused], effect: Effect) -> Result<(), WorkflowError> {
        let step = self.instance.steps;
        match refused.iter().find(|refused| refused.step == step && refused.effect == effect) {
            Some(refused) => Err(refused.error.clone()),
            None => Ok(()),
        }
    }
}
