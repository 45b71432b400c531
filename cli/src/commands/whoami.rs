//! `evenkeel whoami`: the identity of the caller.

use evenkeel_api::whoami::WhoamiResource;

use crate::Failure;
use crate::client::Client;
use crate::output::Printer;
use crate::page::DetailPage;
use crate::time::format_time;

/// Prints who the caller is for the server.
pub async fn print_caller(client: &Client, printer: &mut Printer<'_>) -> Result<(), Failure> {
    let caller: WhoamiResource = client.get_global(&["v1", "whoami"]).await?;
    let mut page = DetailPage::default();
    page.field("subject", &caller.subject)
        .field("issuer", &caller.issuer)
        .field_if("token", &caller.token_name)
        .field("roles", caller.roles.join(", "))
        .field("expires", format_time(caller.expires_at));
    printer.print_page(&caller, &caller.subject, &page)
}
