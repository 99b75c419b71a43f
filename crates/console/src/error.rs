//! How an error looks over HTTP: which status, and a body that says what happened and what to do.

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use capstan_access::AccessError;
use capstan_control::ControlError;
use capstan_fleet::FleetError;
use capstan_meta::{MetaError, Remedy};
use capstan_redis::error::BrokerError;
use serde_json::json;

/// An error as a client of the JSON API sees it.
#[derive(Debug)]
pub struct ApiError {
    status: StatusCode,
    message: String,
}

impl ApiError {
    /// What was asked for does not exist.
    #[must_use]
    pub fn not_found(message: String) -> ApiError {
        ApiError { status: StatusCode::NOT_FOUND, message }
    }

    /// Another status.
    #[must_use]
    pub(crate) fn with(status: StatusCode, message: String) -> ApiError {
        ApiError { status, message }
    }

    /// The metadata holds something that cannot be read.
    #[must_use]
    pub fn unreadable(message: String) -> ApiError {
        ApiError { status: StatusCode::INTERNAL_SERVER_ERROR, message }
    }

    /// The status for what may be done about an error.
    #[must_use]
    pub fn of(remedy: Remedy, message: String) -> ApiError {
        let status = match remedy {
            Remedy::Retry => StatusCode::SERVICE_UNAVAILABLE,
            Remedy::Refresh | Remedy::Fenced => StatusCode::CONFLICT,
            Remedy::Reject => StatusCode::BAD_REQUEST,
            Remedy::Report => StatusCode::INTERNAL_SERVER_ERROR,
        };
        ApiError { status, message }
    }
}

impl From<MetaError> for ApiError {
    fn from(error: MetaError) -> ApiError {
        ApiError::of(error.remedy(), error.to_string())
    }
}

impl From<ControlError> for ApiError {
    fn from(error: ControlError) -> ApiError {
        match error {
            ControlError::UnknownHost(_) => ApiError::not_found(error.to_string()),
            ControlError::StillUp(_) | ControlError::HoldsData { .. } => {
                ApiError { status: StatusCode::CONFLICT, message: error.to_string() }
            }
            ControlError::NothingToDrain(_)
            | ControlError::Contended { .. }
            | ControlError::InvalidName(_)
            | ControlError::BadValue(_)
            | ControlError::Store(_) => ApiError::of(error.remedy(), error.to_string()),
        }
    }
}

impl From<FleetError> for ApiError {
    fn from(error: FleetError) -> ApiError {
        let message = error.to_string();
        match &error {
            FleetError::NotFound(_) | FleetError::UnknownHost(_) => ApiError::not_found(message),
            FleetError::NothingUnderWay
            | FleetError::NotStopped(_)
            | FleetError::StillRunning(_)
            | FleetError::Refused(_) => ApiError { status: StatusCode::CONFLICT, message },
            FleetError::Invalid(_)
            | FleetError::Policy { .. }
            | FleetError::Contended(_)
            | FleetError::Elsewhere(_)
            | FleetError::BadValue(_)
            | FleetError::Store(_) => ApiError::of(error.remedy(), message),
        }
    }
}

impl From<BrokerError> for ApiError {
    fn from(error: BrokerError) -> ApiError {
        let message = error.to_string();
        match &error {
            BrokerError::NoCluster(_)
            | BrokerError::NoHost(_)
            | BrokerError::NoNode { .. }
            | BrokerError::NoMove { .. }
            | BrokerError::NoUser { .. } => ApiError::not_found(message),
            BrokerError::ClusterExists(_)
            | BrokerError::StillDeleting(_)
            | BrokerError::StillCreating(_)
            | BrokerError::Moving(_)
            | BrokerError::HostDiffers(_)
            | BrokerError::HostInUse { .. }
            | BrokerError::NodeElsewhere { .. }
            | BrokerError::NodeNotFree { .. }
            | BrokerError::NodeHasSlots { .. }
            | BrokerError::WrongRole { .. }
            | BrokerError::TooFewNodes { .. }
            | BrokerError::NotMovable { .. } => ApiError { status: StatusCode::CONFLICT, message },
            BrokerError::Invalid(_)
            | BrokerError::Contended { .. }
            | BrokerError::BadValue(_)
            | BrokerError::Store(_) => ApiError::of(error.remedy(), message),
        }
    }
}

impl From<AccessError> for ApiError {
    fn from(error: AccessError) -> ApiError {
        let message = error.to_string();
        match &error {
            AccessError::NotFound(_) => ApiError::not_found(message),
            AccessError::Exists(_) => ApiError { status: StatusCode::CONFLICT, message },
            AccessError::Unenrolled(_) => ApiError { status: StatusCode::FORBIDDEN, message },
            AccessError::Refused(_) => ApiError { status: StatusCode::UNAUTHORIZED, message },
            AccessError::Invalid(_)
            | AccessError::Contended(_)
            | AccessError::BadValue(_)
            | AccessError::Store(_) => ApiError::of(error.remedy(), message),
        }
    }
}

impl From<JsonRejection> for ApiError {
    fn from(rejection: JsonRejection) -> ApiError {
        ApiError { status: rejection.status(), message: rejection.body_text() }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        (self.status, Json(json!({ "error": self.message }))).into_response()
    }
}
