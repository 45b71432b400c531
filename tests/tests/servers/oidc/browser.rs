//! A browser without a window: it follows redirections, keeps cookies, and fills in forms.

use std::collections::BTreeMap;

use reqwest::header::{CONTENT_TYPE, COOKIE, LOCATION, SET_COOKIE};
use reqwest::{Client, RequestBuilder, Response, Url, redirect};

/// Maximum number of requests of a login.
const MAX_REQUESTS: usize = 30;

/// Password of every user.
pub const USER_PASSWORD: &str = "any password";

/// What the user answers to the provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Allow,
    /// The user cancels the login with the first link or button that does so.
    Deny,
}

/// A form that is filled in.
struct FilledForm {
    action: String,
    fields: Vec<(String, String)>,
}

struct Browser {
    http: Client,
    /// The cookies of the provider, by name.
    cookies: BTreeMap<String, String>,
}

/// Opens an address of the provider, and continues until a page asks for nothing.
pub async fn finish_login(address: &str, user: &str, answer: Answer) {
    let http = Client::builder().no_proxy().redirect(redirect::Policy::none()).build();
    let mut browser = Browser { http: http.expect("a client"), cookies: BTreeMap::new() };
    let mut url = Url::parse(address).expect("an address");
    let provider = url.origin();
    let mut request = browser.http.get(url.clone());
    for _ in 0..MAX_REQUESTS {
        if url.origin() != provider {
            // The command line receives the result, and no cookies of the provider.
            let response = request.send().await.expect("the command line listens");
            assert!(response.status().is_success(), "{}", response.status());
            return;
        }
        let response = browser.send(request).await;
        if let Some(target) = response.headers().get(LOCATION) {
            url = url.join(target.to_str().expect("a text")).expect("an address");
            request = browser.http.get(url.clone());
            continue;
        }
        let status = response.status();
        let page = response.text().await.expect("a page");
        assert!(status.is_success(), "{url}: {status}: {page}");
        if answer == Answer::Deny
            && let Some(link) = find_cancel_link(&page)
        {
            url = url.join(&link).expect("an address");
            request = browser.http.get(url.clone());
            continue;
        }
        let Some(form) = fill_in_form(&page, user, answer) else {
            return;
        };
        url = url.join(&form.action).expect("an address");
        request = browser.post(&url, &form.fields);
    }
    panic!("the login does not end: {url}");
}

impl Browser {
    /// Sends a request to the provider with its cookies, and stores new ones.
    async fn send(&mut self, request: RequestBuilder) -> Response {
        let cookies: Vec<_> =
            self.cookies.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let request = request.header(COOKIE, cookies.join("; "));
        let response = request.send().await.expect("the provider responds");
        for header in response.headers().get_all(SET_COOKIE) {
            let header = header.to_str().expect("a text");
            let cookie = header.split(';').next().unwrap_or_default();
            match cookie.split_once('=').expect("a cookie") {
                (name, "") => self.cookies.remove(name),
                (name, value) => self.cookies.insert(name.to_owned(), value.to_owned()),
            };
        }
        response
    }

    fn post(&self, url: &Url, fields: &[(String, String)]) -> RequestBuilder {
        // Form bodies are encoded like query strings.
        let mut encoded = url.clone();
        encoded.query_pairs_mut().clear().extend_pairs(fields);
        let body = encoded.query().unwrap_or_default().to_owned();
        let request = self.http.post(url.clone());
        request.header(CONTENT_TYPE, "application/x-www-form-urlencoded").body(body)
    }
}

/// The first form of a page, with the values of its fields and of the pressed button. Password and
/// name are those of the user.
fn fill_in_form(page: &str, user: &str, answer: Answer) -> Option<FilledForm> {
    let (_, form) = page.split_once("<form")?;
    let (form, _) = form.split_once("</form>")?;
    let (tag, content) = form.split_once('>')?;
    let action = read_attribute(tag, "action")?;
    let inputs = content.split("<input").skip(1);
    let fields = inputs.filter_map(|input| {
        let (tag, _) = input.split_once('>')?;
        let name = read_attribute(tag, "name")?;
        let value = match name.as_str() {
            "login" | "username" => user.to_owned(),
            "password" => USER_PASSWORD.to_owned(),
            _ => read_attribute(tag, "value")?,
        };
        Some((name, value))
    });
    Some(FilledForm { action, fields: fields.chain(press_button(content, answer)).collect() })
}

/// Name and value of the button for an answer: the first one that sends the form, or `cancel` if
/// the form has it.
fn press_button(form: &str, answer: Answer) -> Option<(String, String)> {
    let tags = form.split("<button").skip(1).filter_map(|button| button.split_once('>'));
    let buttons = tags.filter_map(|(tag, _)| {
        let sends_form = read_attribute(tag, "type").is_none_or(|kind| kind == "submit");
        let name = read_attribute(tag, "name").filter(|_| sends_form)?;
        Some((name, read_attribute(tag, "value").unwrap_or_default()))
    });
    let buttons: Vec<_> = buttons.collect();
    let cancel = buttons.iter().find(|(name, _)| name == "cancel" && answer == Answer::Deny);
    cancel.or(buttons.first()).cloned()
}

/// The link that cancels a login.
fn find_cancel_link(page: &str) -> Option<String> {
    let links = page.split("<a").skip(1);
    let mut targets = links.filter_map(|link| read_attribute(link.split_once('>')?.0, "href"));
    targets.find(|target| target.ends_with("/abort"))
}

/// Value of an attribute in double quotes.
fn read_attribute(tag: &str, name: &str) -> Option<String> {
    let (_, rest) = tag.split_once(&format!(" {name}=\""))?;
    let (value, _) = rest.split_once('"')?;
    Some(value.replace("&amp;", "&"))
}

#[test]
fn forms_and_links_are_found_in_pages() {
    let page = "<html><form id=\"a.b\" method=\"post\" action=\"/x?a=1&amp;b=2\">\n\
                <input type=\"hidden\" name=\"token\" value=\"t\"/>\n<input\n    value=\"C\" type=\"text\" name=\"code\"></input>\
                <input name=\"login\"><input type=\"password\" name=\"password\"><input type=\"submit\"></form>\
                <a href=\"/help\">?</a><a class=\"x\" href=\"/interaction/1/abort\">[ Cancel ]</a></html>";
    let form = fill_in_form(page, "alice", Answer::Allow).expect("a form");
    assert_eq!(form.action, "/x?a=1&b=2");
    let fields: Vec<_> =
        form.fields.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let expected =
        [("token", "t"), ("code", "C"), ("login", "alice"), ("password", "any password")];
    assert_eq!(fields, expected);
    assert_eq!(find_cancel_link(page).as_deref(), Some("/interaction/1/abort"));
    assert!(fill_in_form("<p>done</p>", "alice", Answer::Allow).is_none());
}

#[test]
fn a_form_is_sent_with_the_button_of_the_answer() {
    let page = "<form action=\"/consent\" method=\"POST\">\n\
                <input type=\"hidden\" name=\"code\" value=\"c\">\
                <button class=\"x\" type=\"button\" name=\"show\">Show</button>\
                <button class=\"y\" name=\"accept\" id=\"a\"\n    type=\"submit\" >Yes</button>\
                <button name=\"cancel\" type=\"submit\">No</button></form>";
    for (answer, button) in [(Answer::Allow, "accept"), (Answer::Deny, "cancel")] {
        let form = fill_in_form(page, "alice", answer).expect("a form");
        let expected =
            [("code", "c"), (button, "")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(form.fields, expected, "{answer:?}");
    }
    let without_cancel = "<form action=\"/login\"><input name=\"username\" value=\"\">\
                          <input type=\"password\" name=\"password\">\
                          <button>Sign in</button></form>";
    let form = fill_in_form(without_cancel, "alice", Answer::Deny).expect("a form");
    let expected = [("username", "alice"), ("password", USER_PASSWORD)];
    assert_eq!(form.fields, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
}
