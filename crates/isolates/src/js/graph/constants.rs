//! Constant conditions: `process.env.NODE_ENV` is "production".

use oxc::ast::ast::{BinaryOperator, Expression, LogicalOperator, UnaryOperator};
use oxc::semantic::Scoping;

/// The value of `process.env.NODE_ENV`, as source text.
pub(super) const NODE_ENV_TEXT: &str = "\"production\"";

const NODE_ENV: &str = "production";

/// A value that is known before the code runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Constant {
    Text(String),
    Boolean(bool),
}

impl Constant {
    /// The value as a condition.
    pub fn holds(&self) -> bool {
        match self {
            Self::Text(text) => !text.is_empty(),
            Self::Boolean(value) => *value,
        }
    }
}

/// The value of `expression`, if it depends on constants only.
pub(super) fn constant(expression: &Expression<'_>, scoping: &Scoping) -> Option<Constant> {
    let value = |expression| constant(expression, scoping);
    match expression {
        Expression::StringLiteral(literal) => Some(Constant::Text(literal.value.to_string())),
        Expression::BooleanLiteral(literal) => Some(Constant::Boolean(literal.value)),
        Expression::ParenthesizedExpression(inner) => value(&inner.expression),
        Expression::StaticMemberExpression(_) if is_node_env(expression, scoping) => {
            Some(Constant::Text(NODE_ENV.to_owned()))
        }
        Expression::UnaryExpression(unary) if unary.operator == UnaryOperator::LogicalNot => {
            Some(Constant::Boolean(!value(&unary.argument)?.holds()))
        }
        Expression::BinaryExpression(binary) => {
            let equal = match binary.operator {
                BinaryOperator::Equality | BinaryOperator::StrictEquality => true,
                BinaryOperator::Inequality | BinaryOperator::StrictInequality => false,
                _ => return None,
            };
            match (value(&binary.left)?, value(&binary.right)?) {
                (Constant::Text(left), Constant::Text(right)) => {
                    Some(Constant::Boolean((left == right) == equal))
                }
                _ => None,
            }
        }
        Expression::LogicalExpression(logical) => {
            let left = value(&logical.left);
            match (logical.operator, left) {
                (LogicalOperator::And, Some(left)) if !left.holds() => Some(left),
                (LogicalOperator::Or, Some(left)) if left.holds() => Some(left),
                (LogicalOperator::And | LogicalOperator::Or, Some(_)) => value(&logical.right),
                // `anything && false` is no constant, but never holds as a condition.
                (LogicalOperator::And, None) => {
                    value(&logical.right).filter(|right| !right.holds()).map(|_| Constant::Boolean(false))
                }
                _ => None,
            }
        }
        _ => None,
    }
}

/// True for `process.env.NODE_ENV` of the global `process`.
pub(super) fn is_node_env(expression: &Expression<'_>, scoping: &Scoping) -> bool {
    let Expression::StaticMemberExpression(name) = expression else { return false };
    let Expression::StaticMemberExpression(env) = &name.object else { return false };
    let Expression::Identifier(process) = &env.object else { return false };
    name.property.name == "NODE_ENV"
        && env.property.name == "env"
        && process.name == "process"
        && super::scan::is_global(process, scoping)
}
