//! The whole story of one node, for whoever has to find out what went wrong.

use std::fmt::Write as _;

use chrono::SecondsFormat;
use evenkeel_simulator::clock::Time;
use evenkeel_simulator::truth::{EimTruth, OwnTruth};

use super::book::{Book, Held, Member};
use super::crowd::Truth;
use super::record::Run;

/// Lines, each with its instant.
#[derive(Debug, Default)]
struct Lines(Vec<(Time, String)>);

/// Everything that was wanted, done, said and recorded about a node, in the order of time.
pub fn story(member: &Member, truth: &Truth, runs: &[&Run], book: &Book) -> String {
    let mut lines = Lines::default();
    lines.wanted(member, book);
    match truth {
        Truth::Own(own) => lines.own(own),
        Truth::Eim(eim) => lines.eim(eim),
    }
    lines.recorded(runs);
    let Lines(mut lines) = lines;
    lines.sort_by_key(|(time, _)| *time);
    let mut story = format!("the story of {member:?}\n");
    for (time, text) in lines {
        let _never_fails = writeln!(story, "{}  {text}", at(time));
    }
    story
}

impl Lines {
    fn add(&mut self, time: Time, text: String) {
        self.0.push((time, text));
    }

    fn held(&mut self, held: &Held, what: &str) {
        self.add(held.made.asked, format!("wanted   {what}"));
        if let Some(gone) = held.gone {
            self.add(gone.asked, format!("wanted   no more: {what}"));
        }
    }

    fn wanted(&mut self, member: &Member, book: &Book) {
        for opened in book
            .windows
            .iter()
            .filter(|opened| member.is_in(&opened.scope))
        {
            let (start, end) = opened.window;
            let kind = if opened.is_order { "order" } else { "window" };
            let what = format!("{kind} for {}: {} to {}", opened.scope, at(start), at(end));
            self.held(&opened.held, &what);
        }
        for one in book.repeated.iter().filter(|one| member.is_in(&one.scope)) {
            let what = format!("windows for {}: {:?}", one.scope, one.schedule);
            self.held(&one.held, &what);
        }
        for one in book.images.iter().filter(|_| member.is_image) {
            self.held(&one.held, &format!("image {}", one.image));
        }
        for wished in book
            .wishes
            .iter()
            .filter(|wished| member.is_in(&wished.scope))
        {
            self.held(
                &wished.held,
                &format!(
                    "{} for {} {:?}",
                    wished.policy,
                    wished.scope,
                    book.aims.get(&wished.policy)
                ),
            );
        }
        for paused in &book.pauses {
            if !paused.scope.starts_with("site-") || paused.scope == member.site {
                self.held(&paused.held, &format!("pause of {}", paused.scope));
            }
        }
        for (_, step) in book
            .cancelled
            .iter()
            .filter(|(scope, _)| member.is_in(scope))
        {
            self.add(step.asked, "wanted   cancelled".to_owned());
        }
    }

    fn own(&mut self, truth: &OwnTruth) {
        for attempt in &truth.attempts {
            let name = format!("attempt {} at {}", attempt.id, attempt.digest);
            for (number, told) in attempt.events.iter().enumerate() {
                let clock = at(told.at.node);
                let text = format!(
                    "node     {name}: {} {} (its clock {clock})",
                    number + 1,
                    told.news
                );
                self.add(told.at.truth, text);
            }
            if let Some(last) = attempt.events.last() {
                let text = format!(
                    "node     {name}: acknowledged {}, forgotten {}, leave {:?}, {:?}, again {}, runs {:?}",
                    attempt.acknowledged,
                    attempt.forgotten,
                    attempt.leave,
                    attempt.image,
                    attempt.again,
                    attempt.booted
                );
                self.add(last.at.truth, text);
            }
        }
    }

    fn eim(&mut self, truth: &EimTruth) {
        for said in &truth.said {
            let text = format!(
                "node     says {} {:?} {} of update {:?} until {}, acknowledged {}{}",
                said.kind,
                said.detail,
                said.image,
                said.update,
                at(said.between.1),
                said.acknowledged,
                if said.spurious {
                    ", which is not true"
                } else {
                    ""
                }
            );
            self.add(said.between.0, text);
        }
        for told in &truth.delivered {
            let ends = told.answers.first().zip(told.answers.last());
            if let Some((first, last)) = ends {
                let (count, until) = (told.answers.len(), at(last.1));
                let text = format!(
                    "node     is told {:?} {count} times until {until}",
                    told.window
                );
                self.add(first.1, text);
            }
        }
        for told in &truth.targets {
            let until = at(told.last.1);
            let text = format!(
                "node     is told the image {} until {until}, and runs {}",
                told.image, told.running
            );
            self.add(told.first.1, text);
        }
        for (number, update) in truth.updates.iter().enumerate() {
            if let Some(began) = update.began {
                let clock = at(began.node);
                self.add(
                    began.truth,
                    format!(
                        "node     begins update {number} (its clock {clock}) {:?}",
                        update.image
                    ),
                );
            }
            if let Some((ended, end)) = update.ended {
                self.add(
                    ended.truth,
                    format!("node     ends update {number}: {end:?}"),
                );
            }
        }
    }

    fn recorded(&mut self, runs: &[&Run]) {
        for run in runs {
            let attempt = run
                .attempt
                .map(|id| format!(" of {id}"))
                .unwrap_or_default();
            for entry in &run.events {
                let (event, state) = (&entry.event, &entry.state);
                let number = entry
                    .sequence
                    .map(|number| format!(" ({number})"))
                    .unwrap_or_default();
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

fn at(time: Time) -> String {
    time.to_rfc3339_opts(SecondsFormat::Millis, true)
}
