//! Timeline of one node, to find out what went wrong.

use std::fmt::Write as _;

use chrono::SecondsFormat;
use evenkeel_simulator::clock::Time;
use evenkeel_simulator::ground_truth::{EimGroundTruth, OwnGroundTruth};

use super::operator_log::{OperatorLog, SimulatedMember, Validity};
use super::run_records::Run;
use super::simulated_fleet::GroundTruth;

/// Lines with their time.
#[derive(Debug, Default)]
struct Timeline(Vec<(Time, String)>);

/// Everything that operators did, the node did and the servers recorded about a node, ordered by time.
pub fn render_timeline(
    member: &SimulatedMember,
    ground_truth: &GroundTruth,
    runs: &[&Run],
    log: &OperatorLog,
) -> String {
    let mut lines = Timeline::default();
    lines.add_operator_actions(member, log);
    match ground_truth {
        GroundTruth::Own(own) => lines.add_own_node(own),
        GroundTruth::Eim(eim) => lines.add_eim_node(eim),
    }
    lines.add_records(runs);
    let Timeline(mut lines) = lines;
    lines.sort_by_key(|(time, _)| *time);
    let mut timeline = format!("timeline of {member:?}\n");
    for (time, text) in lines {
        let _never_fails = writeln!(timeline, "{}  {text}", format_time(time));
    }
    timeline
}

impl Timeline {
    fn add(&mut self, time: Time, text: String) {
        self.0.push((time, text));
    }

    fn add_validity(&mut self, validity: &Validity, what: &str) {
        self.add(validity.created.requested_at, format!("operator created  {what}"));
        if let Some(removed) = validity.removed {
            self.add(removed.requested_at, format!("operator removed  {what}"));
        }
    }

    fn add_operator_actions(&mut self, member: &SimulatedMember, log: &OperatorLog) {
        for opened in log.windows.iter().filter(|opened| member.is_in(&opened.scope)) {
            let (start, end) = opened.window;
            let kind = if opened.is_order { "order" } else { "window" };
            let what = format!(
                "{kind} for {}: {} to {}",
                opened.scope,
                format_time(start),
                format_time(end)
            );
            self.add_validity(&opened.validity, &what);
        }
        for one in log.repeated_schedules.iter().filter(|one| member.is_in(&one.scope)) {
            let what = format!("windows for {}: {:?}", one.scope, one.schedule);
            self.add_validity(&one.validity, &what);
        }
        for one in log.images.iter().filter(|_| member.is_image) {
            self.add_validity(&one.validity, &format!("image {}", one.image));
        }
        for assignment in
            log.assignments.iter().filter(|assignment| member.is_in(&assignment.scope))
        {
            self.add_validity(
                &assignment.validity,
                &format!(
                    "{} for {} {:?}",
                    assignment.policy,
                    assignment.scope,
                    log.desired_images.get(&assignment.policy)
                ),
            );
        }
        for paused in &log.pauses {
            if !paused.scope.starts_with("site-") || paused.scope == member.site {
                self.add_validity(&paused.validity, &format!("pause of {}", paused.scope));
            }
        }
        for (_, action) in log.cancellations.iter().filter(|(scope, _)| member.is_in(scope)) {
            self.add(action.requested_at, "operator cancelled".to_owned());
        }
    }

    fn add_own_node(&mut self, ground_truth: &OwnGroundTruth) {
        for attempt in &ground_truth.attempts {
            let name = format!("attempt {} at {}", attempt.id, attempt.digest);
            for (number, event) in attempt.events.iter().enumerate() {
                let clock = format_time(event.at.node_time);
                let text =
                    format!("node     {name}: {} {} (its clock {clock})", number + 1, event.name);
                self.add(event.at.true_time, text);
            }
            if let Some(last) = attempt.events.last() {
                let text = format!(
                    "node     {name}: acknowledged {}, forgotten {}, permit {:?}, {:?}, again {}, booted {:?}",
                    attempt.acknowledged,
                    attempt.forgotten,
                    attempt.permit,
                    attempt.image,
                    attempt.again,
                    attempt.booted
                );
                self.add(last.at.true_time, text);
            }
        }
    }

    fn add_eim_node(&mut self, ground_truth: &EimGroundTruth) {
        for report in &ground_truth.reports {
            let text = format!(
                "node     reports {} {:?} {} of update {:?} until {}, acknowledged {}{}",
                report.kind,
                report.detail,
                report.image_version,
                report.update,
                format_time(report.between.1),
                report.acknowledged,
                if report.spurious { ", which is spurious" } else { "" }
            );
            self.add(report.between.0, text);
        }
        for delivery in &ground_truth.delivered {
            let ends = delivery.answers.first().zip(delivery.answers.last());
            if let Some((first, last)) = ends {
                let (count, until) = (delivery.answers.len(), format_time(last.1));
                let text =
                    format!("node     gets {:?} {count} times until {until}", delivery.schedule);
                self.add(first.1, text);
            }
        }
        for delivery in &ground_truth.images {
            let until = format_time(delivery.last.1);
            let text = format!(
                "node     gets the image {} until {until}, and runs {}",
                delivery.version, delivery.running_version
            );
            self.add(delivery.first.1, text);
        }
        for (number, update) in ground_truth.updates.iter().enumerate() {
            if let Some(began) = update.began {
                let clock = format_time(began.node_time);
                self.add(
                    began.true_time,
                    format!(
                        "node     starts update {number} (its clock {clock}) {:?}",
                        update.image
                    ),
                );
            }
            if let Some((ended, end)) = update.ended {
                self.add(ended.true_time, format!("node     ends update {number}: {end:?}"));
            }
        }
    }

    fn add_records(&mut self, runs: &[&Run]) {
        for run in runs {
            let attempt = run.attempt.map(|id| format!(" of {id}")).unwrap_or_default();
            for entry in &run.events {
                let (event, state) = (&entry.event, &entry.state);
                let number =
                    entry.sequence.map(|number| format!(" ({number})")).unwrap_or_default();
                self.add(
                    entry.at,
                    format!("recorded {}{attempt}: {event} -> {state}{number}", run.id),
                );
            }
            if let (Some(image), Some(last)) = (&run.image, run.events.last()) {
                self.add(last.at, format!("recorded {}: {image:?}", run.id));
            }
        }
    }
}

fn format_time(time: Time) -> String {
    time.to_rfc3339_opts(SecondsFormat::Millis, true)
}
