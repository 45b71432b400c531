//! Power cuts after each command of RAUC, with the real record and its reconciliation.

use super::*;
use crate::modules::image::slots::{SlotEvent, step};

/// Maximum number of boots until a machine settles.
const MAX_BOOTS: usize = 10;

/// Number of commands after which the power fails. An update needs fewer.
const MAX_CHANGES: usize = 9;

/// The record of a machine, and whether its new image is healthy.
struct UpdateScenario {
    record: Slots,
    is_healthy: bool,
}

impl UpdateScenario {
    fn apply_event(
        &mut self,
        slot: Slot,
        event: &SlotEvent,
        observed: &BootObservation,
    ) -> Result<(), Failure> {
        self.record = step(&self.record, slot, event, observed, DateTime::UNIX_EPOCH)?;
        Ok(())
    }

    /// Writes and arms an image, in the order of the agent. The machine is reset after that.
    async fn update(&mut self, boot: &RaucControl, spooled: &SpooledImage) -> Result<(), Failure> {
        let observed = boot.observe().await?;
        let slot = observed.booted.expect("a slot").other();
        let image = installed_image(spooled);
        let begin = SlotEvent::Begin { image: image.clone(), allow_retry: true };
        self.apply_event(slot, &begin, &observed)?;
        boot.withdraw(slot).await?;
        let raw = boot.write(slot, spooled, &CancellationToken::new()).await?;
        self.apply_event(slot, &SlotEvent::Wrote(raw), &observed)?;
        boot.install_kernel(slot, &image).await?;
        self.apply_event(slot, &SlotEvent::Arm { allow_retry: true }, &observed)?;
        boot.arm(slot, &image, self.record.sequence).await
    }

    /// The start of an agent. Returns whether the machine is settled; otherwise it is reset.
    async fn start(&mut self, boot: &RaucControl) -> Result<bool, Failure> {
        for _ in 0..4 {
            let observed = boot.observe().await?;
            let running = observed.booted.expect("a slot");
            let (record, repairs) = reconcile(&self.record, &observed, DateTime::UNIX_EPOCH);
            self.record = record;
            if matches!(self.record.state(running), SlotState::Good(_)) {
                boot.confirm_boot(running).await?;
            }
            if repairs.is_empty() {
                return self.end_trial(boot, running, &observed).await;
            }
            for repair in repairs {
                match repair {
                    BootRepair::Withdraw(slot) => boot.withdraw(slot).await?,
                    BootRepair::Bless(slot) => boot.bless(slot).await?,
                    BootRepair::Reset => return Ok(false),
                }
            }
        }
        panic!("the repairs do not end: {:?}", self.record);
    }

    async fn end_trial(
        &mut self,
        boot: &RaucControl,
        running: Slot,
        observed: &BootObservation,
    ) -> Result<bool, Failure> {
        if !matches!(self.record.state(running), SlotState::Trial { .. }) {
            return Ok(true);
        }
        if self.is_healthy {
            self.apply_event(running, &SlotEvent::Passed, observed)?;
            boot.bless(running).await?;
            let blessed = boot.observe().await?;
            self.apply_event(running, &SlotEvent::Committed, &blessed)?;
            return Ok(true);
        }
        let failed = SlotEvent::Failed { reason: "unhealthy".to_owned(), log: String::new() };
        self.apply_event(running, &failed, observed)?;
        boot.withdraw(running).await?;
        Ok(false)
    }
}

#[tokio::test]
async fn after_a_power_cut_behind_any_command_a_good_image_runs_and_the_next_update_succeeds() {
    for (is_healthy, changes) in [true, false]
        .into_iter()
        .flat_map(|is_healthy| (0..=MAX_CHANGES).map(move |changes| (is_healthy, changes)))
    {
        let (fake, boot) = FakeRauc::new(3).into_control();
        let mut agent = UpdateScenario { record: Slots::default(), is_healthy };
        assert!(agent.start(&boot).await.unwrap());
        let spooled = fake.spool_bundle();
        *fake.changes_left.lock().unwrap() = Some(changes);
        let mut result = agent.update(&boot, &spooled).await.map(|()| false);
        for boots in 0.. {
            match result {
                Ok(true) => break,
                Ok(false) => {}
                Err(failure) => {
                    let left = fake.changes_left.lock().unwrap().take();
                    assert_eq!(left, Some(0), "only the power cut fails: {failure}");
                }
            }
            assert!(boots < MAX_BOOTS, "{changes}: {:?}", agent.record);
            fake.reboot();
            result = agent.start(&fake.start_process()).await;
        }
        let running = fake.state().running;
        let other = agent.record.state(running.other());
        assert!(is_healthy || running == Slot::A, "{changes}");
        assert_eq!((agent.record.last_good, fake.next()), (Some(running), Some(running)));
        assert!(!matches!(other, SlotState::Armed { .. } | SlotState::Trial { .. }), "{other:?}");

        agent.is_healthy = true;
        agent.update(&fake.control(), &spooled).await.unwrap();
        fake.reboot();
        assert!(agent.start(&fake.start_process()).await.unwrap());
        assert_eq!(agent.record.last_good, Some(running.other()));
    }
}
