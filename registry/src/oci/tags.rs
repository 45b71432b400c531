//! Reads the tags of a repository page by page.

use std::collections::HashSet;

use reqwest::Method;
use reqwest::header::{HeaderMap, LINK};
use serde::Deserialize;
use url::Url;

use super::send::{HttpRequest, forbidden_address};
use super::{RegistryClient, pull_scope};
use crate::error::{RegistryError, RegistryResult, malformed};
use crate::source::{Repository, Tag};

/// A page of a tag list.
#[derive(Deserialize)]
struct TagPage {
    tags: Option<Vec<String>>,
}

/// State of reading a tag list.
#[derive(Default)]
struct TagListReader {
    tags: Vec<Tag>,
    seen: HashSet<String>,
    visited: HashSet<Url>,
}

/// The next page of a tag list.
enum NextPage {
    /// The registry gave a link to it.
    Linked(Url),
    /// The page is full and has no link, so there may be more tags after this one.
    After(String),
    /// This was the last page.
    End,
}

impl RegistryClient {
    /// Lists the tags of a repository.
    pub(super) async fn tags(&self, repository: &Repository) -> RegistryResult<Vec<Tag>> {
        let limits = &self.sender.limits;
        let plain = self.url(repository, &["tags", "list"])?;
        let numbered = with_query(&plain, &[("n", &limits.tags_per_page.to_string())]);
        // Base of the URLs of pages without a link.
        let mut first_page = &numbered;
        let mut url = first_page.clone();
        let mut reading = TagListReader::default();
        for _ in 0..limits.tag_pages {
            if !reading.visited.insert(url.clone()) {
                return Err(malformed("tag list", "a page links to an earlier one"));
            }
            let is_first = reading.visited.len() == 1;
            let answer = self.tag_page(&url, repository).await;
            let (headers, page) = match answer {
                // Some registries do not support page sizes. Later pages are requested without one
                // too.
                Err(RegistryError::Status(400)) if is_first => {
                    first_page = &plain;
                    url = first_page.clone();
                    reading.visited.insert(url.clone());
                    self.tag_page(&url, repository).await?
                }
                answer => answer?,
            };
            match self.add_page(&mut reading, &url, &headers, page)? {
                NextPage::Linked(next) => url = next,
                NextPage::After(last) => url = with_query(first_page, &[("last", &last)]),
                NextPage::End => return Ok(reading.tags),
            }
        }
        let limit = u64::from(limits.tag_pages);
        Err(RegistryError::TooLarge { limit })
    }

    async fn tag_page(
        &self,
        url: &Url,
        repository: &Repository,
    ) -> RegistryResult<(HeaderMap, TagPage)> {
        let request = HttpRequest::new(Method::GET, url.clone());
        let limit = self.sender.limits.tag_page_bytes;
        let (headers, text) = self.fetch(&request, &pull_scope(repository), limit).await?;
        let page = serde_json::from_slice(&text)
            .map_err(|error| malformed("tag list", error.to_string()))?;
        Ok((headers, page))
    }

    /// Adds the tags of a page and determines the next one.
    fn add_page(
        &self,
        reading: &mut TagListReader,
        url: &Url,
        headers: &HeaderMap,
        page: TagPage,
    ) -> RegistryResult<NextPage> {
        let limits = &self.sender.limits;
        let before = reading.seen.len();
        let tags = page.tags.unwrap_or_default();
        let (count, last) = (tags.len() as u64, tags.last().cloned());
        for text in tags {
            // An invalid tag cannot be requested.
            let Ok(tag) = text.parse::<Tag>() else {
                continue;
            };
            if reading.seen.insert(text) {
                reading.tags.push(tag);
            }
        }
        if reading.tags.len() as u64 > limits.tags {
            let limit = limits.tags;
            return Err(RegistryError::TooLarge { limit });
        }
        let mut links = headers.get_all(LINK).iter();
        let link = links.find_map(|link| parse_next_link(link.to_str().ok()?));
        if let Some(link) = link {
            return linked_page(url, link).map(NextPage::Linked);
        }
        let has_new_tags = reading.seen.len() > before;
        Ok(match last {
            Some(last) if count == limits.tags_per_page && has_new_tags => NextPage::After(last),
            _ => NextPage::End,
        })
    }
}

/// The page to which a link leads: at the registry of this page, by the path and the query of the
/// link. Behind a proxy a registry names itself by a scheme or host that is unknown outside.
fn linked_page(url: &Url, link: &str) -> RegistryResult<Url> {
    let target = url.join(link).map_err(|error| malformed("tag list", error.to_string()))?;
    if !target.has_host() {
        return Err(forbidden_address(&target));
    }
    let mut page = url.clone();
    page.set_path(target.path());
    page.set_query(target.query());
    Ok(page)
}

fn with_query(url: &Url, pairs: &[(&str, &str)]) -> Url {
    let mut url = url.clone();
    url.query_pairs_mut().extend_pairs(pairs);
    url
}

/// Target of the first link with the relation `next` in the value of a `Link` header.
pub fn parse_next_link(text: &str) -> Option<&str> {
    let mut rest = text;
    while let Some((_, behind)) = rest.split_once('<') {
        let (target, after_target) = behind.split_once('>')?;
        // The parameters of a link end where the next link starts.
        let own = after_target.split_once('<').map_or(after_target, |(own, _)| own);
        if own.split([';', ',']).any(is_next_relation) {
            return Some(target);
        }
        rest = after_target;
    }
    None
}

/// Whether a parameter of a link is the relation `next`.
fn is_next_relation(parameter: &str) -> bool {
    let Some((name, value)) = parameter.split_once('=') else {
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
    fn the_next_page_is_the_link_with_that_relation() {
        for (text, next) in [
            ("</v2/a/tags/list?last=b&n=2>; rel=\"next\"", Some("/v2/a/tags/list?last=b&n=2")),
            ("</a>;rel=next", Some("/a")),
            ("</a>; rel=\"prev\", </b>; rel=\"first next\"", Some("/b")),
            ("</a>; title=\"x\"; REL=\"NEXT\"", Some("/a")),
            ("</a>; rel=\"prev\"", None),
            ("</a>", None),
            ("</a; rel=\"next\"", None),
            ("rel=\"next\"", None),
            ("", None),
        ] {
            assert_eq!(parse_next_link(text), next, "{text}");
        }
    }

    #[test]
    fn a_link_is_followed_at_the_same_registry() {
        let url = Url::parse("https://registry.example:8443/v2/a/tags/list?n=2").unwrap();
        for (link, page) in [
            ("/v2/a/tags/list?last=b&n=2", "/v2/a/tags/list?last=b&n=2"),
            ("list?last=b", "/v2/a/tags/list?last=b"),
            ("http://registry.example/v2/a/tags/list?last=b", "/v2/a/tags/list?last=b"),
            ("http://inside:5000/v2/a/tags/list?last=b", "/v2/a/tags/list?last=b"),
            ("https://user:word@other/v2/a/tags/list", "/v2/a/tags/list"),
            ("//other/v2/a/tags/list", "/v2/a/tags/list"),
        ] {
            let expected = format!("https://registry.example:8443{page}");
            assert_eq!(linked_page(&url, link).unwrap().as_str(), expected, "{link}");
        }
        for bad in ["mailto:a@b", "http://[", "data:,x"] {
            assert!(linked_page(&url, bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_link_stays_at_the_registry(link in "\\PC*") {
            let url = Url::parse("https://registry.example/v2/a/tags/list").unwrap();
            if let Ok(page) = linked_page(&url, &link) {
                prop_assert_eq!(page.origin(), url.origin());
            }
        }

        #[test]
        fn any_text_can_be_parsed(text in "\\PC*") {
            parse_next_link(&text);
        }

        #[test]
        fn any_delimiters_can_be_parsed(text in "[<>;,=\" nextrl]*") {
            parse_next_link(&text);
        }
    }
}
