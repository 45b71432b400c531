//! The tags of a repository, page by page.

use std::collections::HashSet;

use reqwest::Method;
use reqwest::header::{HeaderMap, LINK};
use serde::Deserialize;
use url::Url;

use super::send::{Ask, elsewhere};
use super::{Door, pulling};
use crate::error::{Got, RegistryError, malformed};
use crate::source::{Repository, Tag};

/// One page of a list of tags.
#[derive(Deserialize)]
struct Page {
    tags: Option<Vec<String>>,
}

/// What was read of a list of tags so far.
#[derive(Default)]
struct Reading {
    found: Vec<Tag>,
    known: HashSet<String>,
    visited: HashSet<Url>,
}

/// How the list goes on.
enum Next {
    /// The registry says where.
    Linked(Url),
    /// The page is as long as was asked for, and nothing is said: there may be more behind its last tag.
    Behind(String),
    /// It does not.
    End,
}

impl Door {
    /// The tags of a repository.
    pub(super) async fn tags(&self, repository: &Repository) -> Got<Vec<Tag>> {
        let limits = &self.sender.limits;
        let plain = self.url(repository, &["tags", "list"])?;
        let numbered = with(&plain, &[("n", &limits.tags_at_once.to_string())]);
        // How each page is asked for that the registry does not name itself.
        let mut way = &numbered;
        let mut url = way.clone();
        let mut reading = Reading::default();
        for _ in 0..limits.tag_pages {
            if !reading.visited.insert(url.clone()) {
                return Err(malformed("list of tags", "a page leads to one before it"));
            }
            let is_first = reading.visited.len() == 1;
            let answer = self.tag_page(&url, repository).await;
            let (headers, page) = match answer {
                // Some do not know that one can ask for so many; later pages are asked for without a number, too.
                Err(RegistryError::Status(400)) if is_first => {
                    way = &plain;
                    url = way.clone();
                    reading.visited.insert(url.clone());
                    self.tag_page(&url, repository).await?
                }
                answer => answer?,
            };
            match self.take(&mut reading, &url, &headers, page)? {
                Next::Linked(next) => url = next,
                Next::Behind(last) => url = with(way, &[("last", &last)]),
                Next::End => return Ok(reading.found),
            }
        }
        let limit = u64::from(limits.tag_pages);
        Err(RegistryError::TooLarge { limit })
    }

    async fn tag_page(&self, url: &Url, repository: &Repository) -> Got<(HeaderMap, Page)> {
        let ask = Ask::new(Method::GET, url.clone());
        let limit = self.sender.limits.tag_page;
        let (headers, text) = self.fetch(&ask, &pulling(repository), limit).await?;
        let page = serde_json::from_slice(&text)
            .map_err(|error| malformed("list of tags", error.to_string()))?;
        Ok((headers, page))
    }

    /// Takes what is on a page.
    fn take(&self, reading: &mut Reading, url: &Url, headers: &HeaderMap, page: Page) -> Got<Next> {
        let limits = &self.sender.limits;
        let before = reading.known.len();
        let tags = page.tags.unwrap_or_default();
        let (count, last) = (tags.len() as u64, tags.last().cloned());
        for text in tags {
            // What is no tag cannot be asked for.
            let Ok(tag) = text.parse::<Tag>() else {
                continue;
            };
            if reading.known.insert(text) {
                reading.found.push(tag);
            }
        }
        if reading.found.len() as u64 > limits.tags {
            let limit = limits.tags;
            return Err(RegistryError::TooLarge { limit });
        }
        let mut links = headers.get_all(LINK).iter();
        let link = links.find_map(|link| next_page(link.to_str().ok()?));
        if let Some(link) = link {
            let next = url
                .join(link)
                .map_err(|error| malformed("list of tags", error.to_string()))?;
            let is_named = !next.username().is_empty() || next.password().is_some();
            if next.origin() != url.origin() || is_named {
                return Err(elsewhere(&next));
            }
            return Ok(Next::Linked(next));
        }
        let has_news = reading.known.len() > before;
        Ok(match last {
            Some(last) if count == limits.tags_at_once && has_news => Next::Behind(last),
            _ => Next::End,
        })
    }
}

fn with(url: &Url, pairs: &[(&str, &str)]) -> Url {
    let mut url = url.clone();
    url.query_pairs_mut().extend_pairs(pairs);
    url
}

/// The address of the next page that the value of a `Link` names. Any text can be read.
pub fn next_page(text: &str) -> Option<&str> {
    let mut rest = text;
    while let Some((_, behind)) = rest.split_once('<') {
        let (target, said) = behind.split_once('>')?;
        // What is said of one link ends where the next begins.
        let own = said.split_once('<').map_or(said, |(own, _)| own);
        if own.split([';', ',']).any(is_next) {
            return Some(target);
        }
        rest = said;
    }
    None
}

/// Whether one of the things said of a link is that it leads to the next page.
fn is_next(said: &str) -> bool {
    let Some((name, value)) = said.split_once('=') else {
        return false;
    };
    let mut kinds = value.trim().trim_matches('"').split_whitespace();
    name.trim().eq_ignore_ascii_case("rel") && kinds.any(|kind| kind.eq_ignore_ascii_case("next"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_next_page_is_the_one_that_is_called_so() {
        for (text, next) in [
            (
                "</v2/a/tags/list?last=b&n=2>; rel=\"next\"",
                Some("/v2/a/tags/list?last=b&n=2"),
            ),
            ("</a>;rel=next", Some("/a")),
            ("</a>; rel=\"prev\", </b>; rel=\"first next\"", Some("/b")),
            ("</a>; title=\"x\"; REL=\"NEXT\"", Some("/a")),
            ("</a>; rel=\"prev\"", None),
            ("</a>", None),
            ("</a; rel=\"next\"", None),
            ("rel=\"next\"", None),
            ("", None),
        ] {
            assert_eq!(next_page(text), next, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read(text in "\\PC*") {
            next_page(&text);
        }

        #[test]
        fn any_text_of_signs_is_read(text in "[<>;,=\" nextrl]*") {
            next_page(&text);
        }
    }
}
