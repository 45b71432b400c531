//! Conversion between runs and their rows.

use evenkeel_domain::Time;
use evenkeel_domain::decide::Target;
use evenkeel_domain::id::{InstanceId, RunId};
use evenkeel_domain::run::{
    AbandonCause, AttemptId, CancelCause, Failure, FailureKind, RunHistoryEntry, RunState,
    StoredState, UpdateRun,
};
use evenkeel_domain::tenant::TenantId;
use sea_orm::Set;

use crate::error::StoreError;
use crate::rows::update_run::{ActiveModel, Model};
use crate::rows::{JsonColumn, run_event};

const TABLE: &str = "update_runs";

pub(super) fn into_row(tenant: TenantId, run: &UpdateRun) -> Model {
    let state = state_columns(&run.state);
    Model {
        tenant_id: tenant.uuid(),
        id: run.id.bits().cast_signed(),
        instance_id: run.instance.bits().cast_signed(),
        name: run.name.clone(),
        description: run.description.clone(),
        attempt: run.attempt.map(|attempt| attempt.0),
        policy_id: run.origin.policy_id().map(|id| id.bits().cast_signed()),
        origin: JsonColumn(run.origin.clone()),
        target_digest: run.origin.target.as_ref().map(Target::digest),
        state: run.state.name().to_owned(),
        state_since: run.state.since(),
        changed: state.changed,
        cause: state.cause.map(str::to_owned),
        failure_kind: state.failure.map(|failure| failure.kind.name().to_owned()),
        failure: state.failure.map(|failure| failure.reason.clone()),
        packages: JsonColumn(run.packages.clone()),
        log: run.log.clone(),
        report: JsonColumn(run.report.clone()),
        image: run.image.clone().map(JsonColumn),
        sequence: run.sequence.cast_signed(),
        generation: run.generation,
        granted_at: run.granted_at,
        started_at: run.started_at,
        ended_at: run.ended_at(),
        granted_kind: None,
        granted_id: None,
        assigned_kind: None,
        assigned_id: None,
        packages_digest: None,
    }
}

/// The columns that every event may change.
pub(super) fn into_changed_columns(run: &UpdateRun) -> ActiveModel {
    let state = state_columns(&run.state);
    ActiveModel {
        state: Set(run.state.name().to_owned()),
        state_since: Set(run.state.since()),
        changed: Set(state.changed),
        cause: Set(state.cause.map(str::to_owned)),
        failure_kind: Set(state.failure.map(|failure| failure.kind.name().to_owned())),
        failure: Set(state.failure.map(|failure| failure.reason.clone())),
        sequence: Set(run.sequence.cast_signed()),
        generation: Set(run.generation),
        ended_at: Set(run.ended_at()),
        ..ActiveModel::default()
    }
}

/// Columns that are set in some states only.
#[derive(Default)]
struct StateColumns<'a> {
    changed: Option<bool>,
    cause: Option<&'static str>,
    failure: Option<&'a Failure>,
}

fn state_columns(state: &RunState) -> StateColumns<'_> {
    let none = StateColumns::default();
    match state {
        RunState::Downloading { .. }
        | RunState::Staged { .. }
        | RunState::Applying { .. }
        | RunState::Rebooting { .. }
        | RunState::Verifying { .. }
        | RunState::Reverting { .. } => none,
        RunState::Succeeded { changed, .. } => StateColumns { changed: Some(*changed), ..none },
        RunState::Failed { failure, .. } | RunState::Reverted { failure, .. } => {
            StateColumns { failure: Some(failure), ..none }
        }
        RunState::Cancelled { cause, .. } => StateColumns { cause: Some(cause.name()), ..none },
        RunState::Abandoned { cause, .. } => StateColumns { cause: Some(cause.name()), ..none },
    }
}

/// A run whose state this release knows.
pub(super) fn from_row(row: Model) -> Result<UpdateRun, StoreError> {
    let corrupt = |column| StoreError::Corrupt { table: TABLE, row: row.id, column };
    let state = decode_state(&row).map_err(|error| corrupt(error.column()))?;
    Ok(with_state(row, state))
}

/// A run for users: also one whose state or cause only a newer release knows.
pub(super) fn stored_from_row(row: Model) -> Result<UpdateRun<StoredState>, StoreError> {
    let state = match decode_state(&row) {
        Ok(state) => StoredState::Known(state),
        Err(StateError::Unknown(_)) => StoredState::Unknown {
            name: row.state.clone(),
            since: row.state_since,
            ended_at: row.ended_at,
            cause: row.cause.clone().unwrap_or_default(),
        },
        Err(StateError::Missing(column)) => {
            return Err(StoreError::Corrupt { table: TABLE, row: row.id, column });
        }
    };
    Ok(with_state(row, state))
}

fn with_state<S>(row: Model, state: S) -> UpdateRun<S> {
    UpdateRun {
        id: RunId::from_bits(row.id.cast_unsigned()),
        instance: InstanceId::from_bits(row.instance_id.cast_unsigned()),
        name: row.name,
        description: row.description,
        attempt: row.attempt.map(AttemptId),
        origin: row.origin.0,
        state,
        packages: row.packages.0,
        log: row.log,
        report: row.report.0,
        image: row.image.map(|json| json.0),
        sequence: row.sequence.cast_unsigned(),
        generation: row.generation,
        granted_at: row.granted_at,
        started_at: row.started_at,
    }
}

/// Why the columns of a state cannot be decoded, with the name of the column.
enum StateError {
    /// A newer release wrote the value.
    Unknown(&'static str),
    /// The state requires a value that the row does not have.
    Missing(&'static str),
}

impl StateError {
    const fn column(self) -> &'static str {
        match self {
            Self::Unknown(column) | Self::Missing(column) => column,
        }
    }
}

/// The state in the columns.
fn decode_state(row: &Model) -> Result<RunState, StateError> {
    use StateError::{Missing, Unknown};
    let since = row.state_since;
    let at: Time = since;
    let failure = || -> Result<Failure, StateError> {
        let kind = row.failure_kind.as_deref().map(FailureKind::from_stored);
        let kind = kind.ok_or(Missing("failure_kind"))?;
        let reason = row.failure.clone().ok_or(Missing("failure"))?;
        Ok(Failure { kind, reason })
    };
    let cause = || row.cause.as_deref().ok_or(Missing("cause"));
    Ok(match row.state.as_str() {
        "downloading" => RunState::Downloading { since },
        "staged" => RunState::Staged { since },
        "applying" => RunState::Applying { since },
        "rebooting" => RunState::Rebooting { since },
        "verifying" => RunState::Verifying { since },
        "reverting" => RunState::Reverting { since },
        "succeeded" => RunState::Succeeded { at, changed: row.changed.ok_or(Missing("changed"))? },
        "failed" => RunState::Failed { at, failure: failure()? },
        "reverted" => RunState::Reverted { at, failure: failure()? },
        "cancelled" => {
            let cause = CancelCause::from_name(cause()?).ok_or(Unknown("cause"))?;
            RunState::Cancelled { at, cause }
        }
        "abandoned" => {
            let cause = AbandonCause::from_name(cause()?).ok_or(Unknown("cause"))?;
            RunState::Abandoned { at, cause }
        }
        _ => return Err(Unknown("state")),
    })
}

pub(super) fn recorded_event(row: run_event::Model) -> RunHistoryEntry {
    RunHistoryEntry {
        position: row.position.cast_unsigned(),
        event: row.event,
        state: row.state,
        sequence: row.sequence.map(i32::cast_unsigned),
        boot_id: row.boot_id,
        node_time: row.node_time,
        at: row.at,
        detail: row.detail,
    }
}
