//! Answers of other servers, which reach the isolate in pieces: the node never holds a large one whole.

use std::future::Future;
use std::pin::Pin;

use edgefaas_js_abi::Answer;
use futures_util::StreamExt;

use super::messages;
use super::tickets::Step;
use crate::{FetchError, HostFuture, StreamedResponse};

/// A body up to this size comes in one message; a larger one in pieces of at least this size, in bytes.
const PIECE_BYTES: usize = 64 << 10;

/// The messages for an answer: the pieces of its body, and then the rest with its head.
pub async fn pieces(fetch: HostFuture<Result<StreamedResponse, FetchError>>) -> Step {
    match fetch.await {
        Ok(response) => next_piece(response).await,
        Err(error) => Step::Last(messages::refusal(&error.error)),
    }
}

// Boxed, since it names itself.
fn next_piece(mut response: StreamedResponse) -> Pin<Box<dyn Future<Output = Step> + Send>> {
    Box::pin(async move {
        let mut piece: Vec<u8> = Vec::new();
        while piece.len() < PIECE_BYTES {
            match response.body.next().await {
                Some(Ok(data)) => piece.extend_from_slice(&data),
                Some(Err(error)) => return Step::Last(messages::refusal(&error.error)),
                None => return Step::Last(messages::fetch_answer(&response, &piece)),
            }
        }
        let message = messages::encode(&Answer::Piece { body: &piece, total_bytes: response.body_bytes });
        Step::Piece(message, next_piece(response))
    })
}
