//! Prints the table of variables as the README holds it, then what the environment of this
//! process amounts to: the settings, or every mistake.
//!
//! ```text
//! ROUTER_PORT=70000 cargo run -p config --example variables
//! ```

use config::{Settings, VARIABLES};

fn main() {
    println!("| variable | type | default | allowed | what for |");
    println!("|---|---|---|---|---|");
    for variable in VARIABLES {
        println!("{}", row(variable));
    }
    println!();
    match Settings::from_env() {
        Ok(settings) => println!("{settings:#?}"),
        Err(error) => error
            .problems()
            .iter()
            .for_each(|problem| println!("{problem}")),
    }
}

fn row(variable: &config::Variable) -> String {
    let default = match (variable.required, variable.default) {
        (true, _) => "**required**".to_owned(),
        (false, "") => "unset".to_owned(),
        (false, default) => format!("`{default}`"),
    };
    format!(
        "| `{}`{} | {} | {} | {} | {} |",
        variable.env,
        if variable.ours { " (ours)" } else { "" },
        variable.kind,
        default,
        variable.allowed().unwrap_or_default(),
        variable.doc,
    )
}
