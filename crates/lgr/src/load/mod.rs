//! `lgr load`: how much does a router carry, how fast, and at what cost?
//!
//! Producers and subscribers live on threads of their own with current-thread runtimes: a tool that
//! shares the machine with the router must cost less than the router does. Producers patch prepared
//! bytes ([`template`], [`producer`]); subscribers only look for numbers and timestamps ([`scan`],
//! [`ledger`]). The controller in [`run`] leads through the phases of a run: subscribe, connect,
//! warm up, measure, stop, drain, report.

mod ledger;
mod pace;
mod plan;
mod process;
mod producer;
mod report;
mod run;
mod scan;
mod subscriber;
mod template;

pub(crate) use plan::{Group, Mix};
pub(crate) use run::{Plan, run};
pub(crate) use template::Api;
