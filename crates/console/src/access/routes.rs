//! What does each route need? A router in which a route cannot be added without saying so.

use std::collections::HashMap;

use axum::Router;
use axum::http::Method;
use axum::routing::MethodRouter;
use capstan_access::grant::BadGrant;
use capstan_access::{Object, Verb};

use crate::State;

/// What a request to a route needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Nothing: health, the version, signing in.
    Public,
    /// Any identity.
    SignedIn,
    /// The certificate of a host.
    Host,
    /// A verb on an object. `{name}` in it stands for the parameter of the path.
    Grant(Verb, &'static str),
}

pub(crate) const fn public() -> Need {
    Need::Public
}

pub(crate) const fn signed_in() -> Need {
    Need::SignedIn
}

pub(crate) const fn host() -> Need {
    Need::Host
}

pub(crate) const fn view(object: &'static str) -> Need {
    Need::Grant(Verb::View, object)
}

pub(crate) const fn operate(object: &'static str) -> Need {
    Need::Grant(Verb::Operate, object)
}

pub(crate) const fn admin(object: &'static str) -> Need {
    Need::Grant(Verb::Admin, object)
}

/// One route and what it needs, for the tests that walk all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteNeed {
    /// The method.
    pub method: String,
    /// The path, with its parameters.
    pub path: &'static str,
    /// The verb and the object; nothing if no grant is needed.
    pub grant: Option<(Verb, &'static str)>,
    /// Whether it is served without any credential.
    pub public: bool,
    /// Whether it is served to hosts only, which show their certificates.
    pub host: bool,
}

/// A router, and what its routes need.
#[derive(Default)]
pub(crate) struct Routes {
    pub(crate) router: Router<State>,
    needs: Vec<(Method, &'static str, Need)>,
}

impl Routes {
    /// One more route.
    pub(crate) fn at(
        mut self,
        method: Method,
        path: &'static str,
        handler: MethodRouter<State>,
        need: Need,
    ) -> Routes {
        self.needs.push((method, path, need));
        Routes { router: self.router.route(path, handler), needs: self.needs }
    }

    pub(crate) fn get(self, path: &'static str, handler: MethodRouter<State>, need: Need) -> Routes {
        self.at(Method::GET, path, handler, need)
    }

    pub(crate) fn post(self, path: &'static str, handler: MethodRouter<State>, need: Need) -> Routes {
        self.at(Method::POST, path, handler, need)
    }

    pub(crate) fn put(self, path: &'static str, handler: MethodRouter<State>, need: Need) -> Routes {
        self.at(Method::PUT, path, handler, need)
    }

    pub(crate) fn delete(self, path: &'static str, handler: MethodRouter<State>, need: Need) -> Routes {
        self.at(Method::DELETE, path, handler, need)
    }

    /// The routes of another part as well.
    pub(crate) fn merge(mut self, other: Routes) -> Routes {
        self.needs.extend(other.needs);
        Routes { router: self.router.merge(other.router), needs: self.needs }
    }

    /// Changes the router as a whole, such as by a layer.
    pub(crate) fn map(self, change: impl FnOnce(Router<State>) -> Router<State>) -> Routes {
        Routes { router: change(self.router), needs: self.needs }
    }

    /// What every route needs, by method and path.
    pub(crate) fn table(&self) -> HashMap<(Method, &'static str), Need> {
        self.needs.iter().map(|(method, path, need)| ((method.clone(), *path), *need)).collect()
    }

    /// The same as a list.
    pub(crate) fn list(&self) -> Vec<RouteNeed> {
        let line = |(method, path, need): &(Method, &'static str, Need)| RouteNeed {
            method: method.to_string(),
            path,
            grant: match need {
                Need::Public | Need::SignedIn | Need::Host => None,
                Need::Grant(verb, object) => Some((*verb, *object)),
            },
            public: *need == Need::Public,
            host: *need == Need::Host,
        };
        self.needs.iter().map(line).collect()
    }
}

/// The object that a template stands for, with the parameters of a path.
pub(crate) fn object<'p>(
    template: &'static str,
    params: impl Fn(&str) -> Option<&'p str>,
) -> Result<Object, BadGrant> {
    let (service, path) = template.split_once(':').unwrap_or((template, ""));
    let fill = |part: &'static str| {
        let name = part.strip_prefix('{').and_then(|part| part.strip_suffix('}'));
        match name {
            None => Ok(part),
            Some(name) => params(name).ok_or_else(|| BadGrant(format!("the path has no {name}"))),
        }
    };
    let parts = path.split('/').filter(|part| !part.is_empty()).map(fill);
    Object::within(service, &parts.collect::<Result<Vec<_>, _>>()?)
}
