// SPDX-License-Identifier: Apache-2.0
//! Rules by what is known about the container of a process.

use super::{Condition, Facts, broken, mariadb};
use crate::service::container::described::Container;
use std::collections::BTreeMap;

fn container() -> Container {
    let mut container = Container { namespace: Some("shop".into()), ..Container::default() };
    container.add_image(Some(&"docker.io/library/mariadb:11".to_string()));
    let labels = [("app", "mariadb-main"), ("app.kubernetes.io/name", "mariadb")];
    container.add_labels(
        &labels.into_iter().map(|(key, value)| (key.into(), value.into())).collect::<BTreeMap<_, _>>(),
    );
    container
}

#[test]
fn issue_33_3_conditions_of_containers() {
    use Condition::{Image, Label, Namespace, Program, SystemUser};
    let container = container();
    let inside = Facts { container: Some(&container), ..mariadb() };
    for (conditions, expected) in [
        ("image = \"docker.io/library/mariadb:*\"", None),
        ("image = \"*/mariadb:11\"", None),
        ("image = [\"x\", \"*mariadb*\"]", None),
        ("image = \"mariadb\"", Some(Image)),
        ("label = \"app=mariadb*\"", None),
        ("label = \"app.kubernetes.io/name=mariadb\"", None),
        ("label = \"app=*\"", None),
        ("label = \"app=mariadb\"", Some(Label)),
        ("label = [\"tier=db\", \"app=postgres\"]", Some(Label)),
        ("namespace = \"shop\"", None),
        ("namespace = \"sh\"", Some(Namespace)),
        ("image = \"x\"\nlabel = \"x=y\"", Some(Image)),
        ("program = \"/x\"\nimage = \"x\"", Some(Program)),
        ("namespace = \"x\"\nlarger_than = \"1G\"", Some(Namespace)),
    ] {
        assert_eq!(broken(conditions, &inside), expected, "{conditions}");
    }
    let user = Facts { uid: 1000, ..inside };
    assert_eq!(broken("namespace = \"shop\"", &user), Some(SystemUser));
    assert_eq!(broken("namespace = \"shop\"\nany_user = true", &user), None);
}

#[test]
fn issue_33_3_without_a_container_no_such_condition_holds() {
    for (conditions, expected) in [
        ("image = \"*\"", Condition::Image),
        ("label = \"*\"", Condition::Label),
        ("namespace = \"*\"", Condition::Namespace),
    ] {
        assert_eq!(broken(conditions, &mariadb()), Some(expected), "{conditions}");
        let unknown = Container::default();
        let inside = Facts { container: Some(&unknown), ..mariadb() };
        assert_eq!(broken(conditions, &inside), Some(expected), "{conditions}");
    }
}
