//! What is known about a module without a node: names and translations.

use std::fmt;
use std::io::Write;
use std::pin::Pin;
use std::process::ExitCode;

use evenkeel_proto::agent as pb;
use serde_json::Value;

use super::any::{decode_or_default, decode_spec, decode_step, encode_step};
use super::{AnyModule, AnyStep, Module, ReportText, RetryRule, SpecIdentity};
use crate::cli::AgentCommand;
use crate::commands::doctor::DoctorFinding;
use crate::model::{Failure, FailureKind, encode_part};
use crate::module_registry::ModuleRegistry;

/// The module of this node, if the node has something that the module can change.
type BuiltModule = Result<Option<Box<dyn AnyModule>>, Failure>;

/// The findings of a module, once they are known.
type Diagnosis<'a> = Pin<Box<dyn Future<Output = Vec<DoctorFinding>> + 'a>>;

/// The functions of a [`Module`] that need no node, with the types hidden.
#[derive(Clone, Copy)]
pub struct ModuleKind {
    /// [`Module::NAME`].
    pub name: &'static str,
    /// [`Module::STEP_NAMES`].
    pub step_names: &'static [&'static str],
    /// [`Module::APPLIES_ON_REBOOT`].
    pub applies_on_reboot: bool,
    /// [`Module::WRITTEN_PATHS`].
    pub written_paths: &'static [&'static str],
    /// [`Module::build`].
    pub build: fn(&ModuleRegistry<'_>) -> BuiltModule,
    /// [`Module::parse_spec`].
    pub parse_spec: fn(&pb::target::Spec) -> Option<Value>,
    /// [`Module::identify`].
    pub identify: fn(&Value) -> SpecIdentity,
    /// [`Module::update_step`].
    pub update_step: fn(&AnyStep, &Value) -> Result<Option<AnyStep>, Failure>,
    /// [`Module::retry_rule`].
    pub retry_rule: fn(FailureKind) -> RetryRule,
    /// [`Module::write_event`].
    pub write_event: fn(&Value, &mut pb::Event),
    /// [`Module::describe`].
    pub describe: fn(&Value) -> ReportText,
    /// [`Module::diagnose`].
    pub diagnose: for<'a> fn(&'a ModuleRegistry<'a>) -> Diagnosis<'a>,
    /// [`Module::run_command`].
    pub run_command: fn(&AgentCommand, &mut dyn Write) -> Option<anyhow::Result<ExitCode>>,
}

impl fmt::Debug for ModuleKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModuleKind").field("name", &self.name).finish_non_exhaustive()
    }
}

impl ModuleKind {
    pub const fn of<M: Module>() -> Self {
        Self {
            name: M::NAME,
            step_names: M::STEP_NAMES,
            applies_on_reboot: M::APPLIES_ON_REBOOT,
            written_paths: M::WRITTEN_PATHS,
            build: |registry| {
                let module = M::build(registry)?;
                Ok(module.map(|module| Box::new(module) as Box<dyn AnyModule>))
            },
            parse_spec: |message| encode_part(M::NAME, &M::parse_spec(message)?).ok(),
            identify: |spec| {
                decode_spec::<M>(spec).map(|spec| M::identify(&spec)).unwrap_or_default()
            },
            update_step: |step, spec| {
                let step = M::update_step(&decode_step::<M>(step)?, &decode_spec::<M>(spec)?);
                step.as_ref().map(encode_step::<M>).transpose()
            },
            retry_rule: M::retry_rule,
            write_event: |report, event| M::write_event(&decode_or_default::<M, _>(report), event),
            describe: |report| M::describe(&decode_or_default::<M, _>(report)),
            diagnose: |registry| Box::pin(M::diagnose(registry)),
            run_command: M::run_command,
        }
    }
}
