//! Observes which slot runs and how the other one would be started.

use super::super::{apply_failure, mounts};
use super::loader_variables::LoaderVariables;
use super::names::{is_kernel, slot_of_device, started_and_other_kernel};
use super::tool_record::ToolRecord;
use super::{ImageTool, QUERY_TIMEOUT};
use crate::model::Failure;
use crate::modules::image::slots::{BootEntry, Slot};

impl ImageTool {
    /// The running slot: the one that the tool reports, else the one whose partition is the root.
    pub(super) async fn find_booted_slot(&self) -> Result<Option<Slot>, Failure> {
        let output = self.run(&self.tool_command(QUERY_TIMEOUT, &["-v"])).await?.combined_output();
        let partitions = mounts::read_partitions(&self.system.sys);
        let tokens =
            output.split(|letter: char| letter.is_whitespace() || ":,;()'\"".contains(letter));
        let mut slots = tokens
            .filter_map(|token| token.strip_prefix("/dev/"))
            .filter_map(|node| slot_of_device(node, &partitions));
        if let Some(slot) = slots.next() {
            if slots.any(|other| other != slot) {
                return Err(apply_failure(format!("{} -v names both slots", self.program)));
            }
            return Ok(Some(slot));
        }
        let root = mounts::find_root_partition(&self.system.mounts()?, &self.system.sys);
        Ok(root.and_then(|root| slot_of_device(&root.node, &partitions)))
    }

    /// The boot entry of a slot that has a one-shot order. An order given in this boot is checked
    /// at each observation: an agent that was killed before its own check may have left an order
    /// that starts a truncated kernel.
    async fn one_shot_entry(&self, slot: Slot, boot_id: &str) -> Result<BootEntry, Failure> {
        let note = ToolRecord::read(&self.record_path())?;
        let Some(note) = note.filter(|note| note.is_one_shot_set(slot, boot_id)) else {
            return Ok(BootEntry::OneShot);
        };
        let result = match self.check_no_call_running() {
            Ok(()) => self.check_one_shot(&note).await,
            busy => busy,
        };
        Ok(match result {
            Ok(()) => BootEntry::OneShot,
            Err(failure) => BootEntry::Invalid(failure.reason),
        })
    }

    /// The boot entry of the slot that does not run.
    pub(super) async fn inactive_slot_entry(
        &self,
        slot: Slot,
        boot_id: &str,
        variables: &LoaderVariables,
    ) -> Result<BootEntry, Failure> {
        let (_, other) = started_and_other_kernel(&variables.selected);
        if is_kernel(variables.once.as_deref(), other) {
            return self.one_shot_entry(slot, boot_id).await;
        }
        if is_kernel(variables.default.as_deref(), other) {
            return Ok(BootEntry::Plain);
        }
        // The loader deletes its one-shot order when it follows it. If the image failed before it
        // recorded its boot, only the mark distinguishes it from an image that was never started.
        match ToolRecord::read(&self.record_path())? {
            Some(note) if note.was_tried(slot, boot_id) => Ok(BootEntry::OneShot),
            _ => Ok(BootEntry::Absent),
        }
    }

    /// Fails unless only the next boot starts the recorded kernel.
    pub(super) async fn check_one_shot(&self, note: &ToolRecord) -> Result<(), Failure> {
        let (variables, kernel) = (self.read_loader_variables()?, note.kernel);
        self.run_on_esp(move |esp| variables.check_one_shot(esp, &kernel)).await
    }
}
