//! A web server for a repository: plain HTTP, one folder, with support for range requests.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::http::header::{IF_MODIFIED_SINCE, LOCATION, RANGE};
use axum::middleware::{Next, from_fn, map_request};
use axum::response::IntoResponse;
use tower_http::services::ServeDir;

/// Serves a folder until the program ends.
#[derive(Debug)]
pub struct Web {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<WebRequest>>>,
}

/// A request for a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebRequest {
    /// Path in the folder.
    pub path: String,
    /// First byte of the range.
    pub from: u64,
}

impl Web {
    /// Serves `folder`, which need not exist yet.
    pub fn serve(folder: &Path) -> Self {
        Self::start(Router::new().fallback_service(ServeDir::new(folder)))
    }

    /// Serves `folder`, but redirects each request for a path that begins with `start` to the address that `target` makes of
    /// the path.
    pub fn redirect(
        folder: &Path,
        start: &'static str,
        target: impl Fn(&str) -> String + Clone + Send + Sync + 'static,
    ) -> Self {
        let redirect = move |request: Request, next: Next| {
            let path = request.uri().path();
            let location = path.starts_with(start).then(|| target(path));
            async move {
                match location {
                    Some(location) => {
                        (StatusCode::MOVED_PERMANENTLY, [(LOCATION, location)]).into_response()
                    }
                    None => next.run(request).await,
                }
            }
        };
        let files = Router::new().fallback_service(ServeDir::new(folder));
        Self::start(files.layer(from_fn(redirect)))
    }

    fn start(files: Router) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        listener.set_nonblocking(true).expect("a listener for tokio");
        let requests = Arc::<Mutex<Vec<_>>>::default();
        let record = Arc::clone(&requests);
        let record = move |mut request: Request| {
            // A file may change twice within a second, which is the precision of this time.
            request.headers_mut().remove(IF_MODIFIED_SINCE);
            let mut all = record.lock().unwrap_or_else(PoisonError::into_inner);
            all.push(WebRequest::from_http(&request));
            std::future::ready(request)
        };
        let files = files.layer(map_request(record));
        thread::spawn(move || {
            let runtime = tokio::runtime::Runtime::new().expect("a runtime");
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
                axum::serve(listener, files).await
            })
        });
        Self { address, requests }
    }

    /// Address of the server.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// All requests so far.
    pub fn requests(&self) -> Vec<WebRequest> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl WebRequest {
    fn from_http(request: &Request) -> Self {
        let range = request.headers().get(RANGE).and_then(|range| range.to_str().ok());
        let from = range.and_then(|range| range.strip_prefix("bytes=")?.split('-').next());
        Self {
            path: request.uri().path().trim_start_matches('/').to_owned(),
            from: from.and_then(|from| from.parse().ok()).unwrap_or(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[tokio::test]
    async fn a_path_is_redirected_and_the_others_are_served() {
        evenkeel_test_support::install_tls();
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("file"), "here").expect("a file");
        let web = Web::redirect(folder.path(), "/pool/", |path| format!("file://{path}"));
        let client = reqwest::Client::builder().no_proxy();
        let client = client.redirect(reqwest::redirect::Policy::none()).build().expect("a client");
        let get = async |path: &str| {
            let request = client.get(format!("http://{}/{path}", web.address()));
            let answer = request.send().await.expect("an answer");
            let location = answer.headers().get(LOCATION).cloned();
            (answer.status().as_u16(), location, answer.text().await.expect("a body"))
        };
        assert_eq!(get("file").await, (200, None, "here".to_owned()));
        assert_eq!(get("pool/x").await, (301, "file:///pool/x".parse().ok(), String::new()));
        assert_eq!(web.requests().len(), 2);
    }

    #[tokio::test]
    async fn a_file_is_served_completely_and_from_its_middle() {
        evenkeel_test_support::install_tls();
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("file"), "0123456789").expect("a file");
        let web = Web::serve(folder.path());
        let get = async |path: &str, range: Option<&str>| {
            let client = reqwest::Client::builder().no_proxy().build().expect("a client");
            let request = client.get(format!("http://{}/{path}", web.address()));
            let request = range.into_iter().fold(request, |it, range| it.header(RANGE, range));
            let answer = request.send().await.expect("an answer");
            let range = answer.headers().get("content-range").cloned();
            (answer.status().as_u16(), range, answer.text().await.expect("a body"))
        };
        assert_eq!(get("file", None).await, (200, None, "0123456789".to_owned()));
        let range = "bytes 4-9/10".parse().ok();
        assert_eq!(get("file", Some("bytes=4-")).await, (206, range, "456789".to_owned()));
        assert_eq!(get("none", None).await.0, 404);
        let offsets: Vec<_> = web.requests().into_iter().map(|request| request.from).collect();
        assert_eq!(offsets, [0, 4, 0]);
    }
}
