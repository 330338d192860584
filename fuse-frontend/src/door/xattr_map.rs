//! Names of extended attributes as a guest sees them, and as the region has them: `--xattrmap`, in
//! the form of virtiofsd.
//!
//! A map is a list of rules. The first one that fits a name decides; a name that none fits is
//! refused to the guest, and hidden from it. The first character of a rule that is no white space
//! separates its fields:
//!
//! | rule | fits | does |
//! |---|---|---|
//! | `:prefix:SCOPE:KEY:PREPEND:` | see below | puts PREPEND before the guest's name, and takes it off the region's |
//! | `:ok:SCOPE:KEY:PREPEND:` | | leaves the name |
//! | `:bad:SCOPE:KEY:PREPEND:` | | refuses it (EPERM; to a read, ENODATA), and hides it |
//! | `:unsupported:SCOPE:KEY:PREPEND:` | | refuses it (ENOTSUP), and hides it |
//! | `:map:KEY:PREPEND:`, the last | | PREPEND for all names, or for those that begin with KEY; refuses and hides what would be taken for them |
//!
//! SCOPE is `client` (names from the guest: fits those that begin with KEY), `server` (names that
//! the region lists: fits those that begin with PREPEND) or `all` (both).

use std::borrow::Cow;

use pramfs_fuse_protocol::Errno;

/// The names of POSIX ACLs.
const ACLS: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];

/// The label that Linux sends with a new file.
const LABEL: &[u8] = b"security.selinux";

const FORM: &str = "a rule is :TYPE:SCOPE:KEY:PREPEND: with the types prefix, ok, bad and unsupported, and the scopes client, server and all; or, as the last one, :map:KEY:PREPEND:";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Prefix,
    Ok,
    Bad,
    Unsupported,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Rule {
    kind: Kind,
    client: bool,
    server: bool,
    key: Vec<u8>,
    prepend: Vec<u8>,
}

/// A map of names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct XattrMap {
    rules: Vec<Rule>,
}

impl XattrMap {
    /// Reads a map, as on the command line.
    ///
    /// # Errors
    /// It is malformed.
    pub fn parse(text: &str) -> Result<XattrMap, String> {
        let mut rules: Vec<Rule> = Vec::new();
        let mut rest = text.trim_start();
        let mut was_map = false;
        while let Some(separator) = rest.chars().next() {
            if was_map {
                return Err("a map rule is the last one".into());
            }
            rest = &rest[separator.len_utf8()..];
            let mut field = || -> Result<&str, String> {
                let (field, after) = rest.split_once(separator).ok_or(FORM)?;
                rest = after;
                Ok(field)
            };
            let kind = match field()? {
                "prefix" => Kind::Prefix,
                "ok" => Kind::Ok,
                "bad" => Kind::Bad,
                "unsupported" => Kind::Unsupported,
                "map" => {
                    let (key, prepend) = (field()?, field()?);
                    rules.extend(rules_of_map(key, prepend)?);
                    was_map = true;
                    rest = rest.trim_start();
                    continue;
                }
                other => return Err(format!("{other:?} is no type: {FORM}")),
            };
            let (client, server) = match field()? {
                "client" => (true, false),
                "server" => (false, true),
                "all" => (true, true),
                other => return Err(format!("{other:?} is no scope: {FORM}")),
            };
            let (key, prepend) = (field()?.into(), field()?.into());
            rules.push(Rule {
                kind,
                client,
                server,
                key,
                prepend,
            });
            rest = rest.trim_start();
        }
        match rules.is_empty() {
            true => Err(FORM.into()),
            false => Ok(XattrMap { rules }),
        }
    }

    /// Returns the name in the region of an attribute that a guest names.
    ///
    /// # Errors
    /// ENOTSUP or EPERM if the guest may not use it; for `reads`, ENODATA in place of EPERM.
    pub(super) fn to_region<'n>(
        &self,
        name: &'n [u8],
        reads: bool,
    ) -> Result<Cow<'n, [u8]>, Errno> {
        let mut of_guest = self.rules.iter().filter(|rule| rule.client);
        let rule = of_guest.find(|rule| name.starts_with(&rule.key));
        match rule.map(|rule| (rule.kind, &rule.prepend)) {
            Some((Kind::Ok, _)) => Ok(Cow::Borrowed(name)),
            Some((Kind::Prefix, prepend)) => Ok(Cow::Owned([&**prepend, name].concat())),
            Some((Kind::Unsupported, _)) => Err(Errno::EOPNOTSUPP),
            Some((Kind::Bad, _)) | None => Err(match reads {
                true => Errno::ENODATA,
                false => Errno::EPERM,
            }),
        }
    }

    /// Returns the name that a guest sees of an attribute of the region, if it sees it.
    fn to_guest<'n>(&self, name: &'n [u8]) -> Option<&'n [u8]> {
        let mut of_region = self.rules.iter().filter(|rule| rule.server);
        let rule = of_region.find(|rule| name.starts_with(&rule.prepend))?;
        match rule.kind {
            Kind::Ok => Some(name),
            Kind::Prefix => Some(&name[rule.prepend.len()..]).filter(|name| !name.is_empty()),
            Kind::Bad | Kind::Unsupported => None,
        }
    }

    /// Returns the list that a guest sees of a list of names, each ended by a NUL.
    pub(super) fn list_to_guest(&self, names: &[u8]) -> Vec<u8> {
        let mut seen = Vec::with_capacity(names.len());
        for name in names.split(|byte| *byte == 0).filter(|n| !n.is_empty()) {
            if let Some(name) = self.to_guest(name) {
                seen.extend_from_slice(name);
                seen.push(0);
            }
        }
        seen
    }

    /// Whether ACLs keep their names, so that they are ACLs in the region too.
    pub(super) fn keeps_acls(&self) -> bool {
        ACLS.iter().all(|name| self.keeps(name))
    }

    /// Whether a guest may give a new file its label.
    pub(super) fn keeps_label(&self) -> bool {
        self.keeps(LABEL)
    }

    /// Whether a guest may use a name, and it is the same in the region.
    pub(super) fn keeps(&self, name: &[u8]) -> bool {
        let mapped = self.to_region(name, false);
        mapped.is_ok_and(|mapped| *mapped == *name)
    }
}

/// Returns the rules that `:map:KEY:PREPEND:` stands for.
fn rules_of_map(key: &str, prepend: &str) -> Result<Vec<Rule>, String> {
    if prepend.is_empty() {
        return Err("a map rule needs something to prepend".into());
    }
    let rule = |kind, (client, server), key: &str, prepend: &str| Rule {
        kind,
        client,
        server,
        key: key.into(),
        prepend: prepend.into(),
    };
    let all = (true, true);
    let first = rule(Kind::Prefix, all, key, prepend);
    Ok(match key.is_empty() {
        true => vec![first, rule(Kind::Bad, all, "", "")],
        false => vec![
            first,
            rule(Kind::Bad, (false, true), "", key),
            rule(Kind::Bad, (true, false), prepend, ""),
            rule(Kind::Ok, all, "", ""),
        ],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(text: &str) -> XattrMap {
        XattrMap::parse(text).unwrap_or_else(|why| panic!("{text}: {why}"))
    }

    fn stored(map: &XattrMap, name: &str) -> Result<String, Errno> {
        let name = map.to_region(name.as_bytes(), false)?;
        Ok(String::from_utf8(name.into_owned()).unwrap())
    }

    fn seen(map: &XattrMap, names: &[&str]) -> Vec<String> {
        let list: String = names.iter().map(|name| format!("{name}\0")).collect();
        let seen = String::from_utf8(map.list_to_guest(list.as_bytes())).unwrap();
        seen.split_terminator('\0').map(str::to_owned).collect()
    }

    #[test]
    fn prefix_for_all_names_is_put_on_taken_off_and_hides_others() {
        for text in [
            ":prefix:all::user.guest.::bad:all:::",
            "  /prefix/all//user.guest./\n /bad/all///  ",
            ":map::user.guest.:",
        ] {
            let map = map(text);
            assert_eq!(stored(&map, "trusted.x").unwrap(), "user.guest.trusted.x");
            let names = ["user.guest.trusted.x", "user.own", "user.guest."];
            assert_eq!(seen(&map, &names), ["trusted.x"]);
            assert!(!map.keeps_acls());
        }
    }

    #[test]
    fn prefix_for_some_names_lets_others_through() {
        let map = map(":map:trusted.:user.virtiofs.:");
        assert_eq!(
            stored(&map, "trusted.x").unwrap(),
            "user.virtiofs.trusted.x"
        );
        assert_eq!(stored(&map, "user.x").unwrap(), "user.x");
        assert_eq!(stored(&map, "user.virtiofs.x"), Err(Errno::EPERM));
        let names = ["trusted.hosts", "user.virtiofs.trusted.x", "user.x"];
        assert_eq!(seen(&map, &names), ["trusted.x", "user.x"]);
        assert!(map.keeps_acls());
    }

    #[test]
    fn refused_name_has_error_of_its_rule() {
        let map = map(
            "/unsupported/all/security.selinux/security.selinux//bad/client/user.no//\n/ok/all/user.//",
        );
        assert_eq!(stored(&map, "security.selinux"), Err(Errno::EOPNOTSUPP));
        assert_eq!(stored(&map, "user.no"), Err(Errno::EPERM));
        assert_eq!(map.to_region(b"user.no", true), Err(Errno::ENODATA));
        assert_eq!(stored(&map, "user.yes").unwrap(), "user.yes");
        // No rule fits.
        assert_eq!(stored(&map, "trusted.x"), Err(Errno::EPERM));
        assert_eq!(seen(&map, &["security.selinux", "user.no"]), ["user.no"]);
    }

    #[test]
    fn malformed_map_is_refused() {
        for (text, says) in [
            ("", "TYPE"),
            ("  ", "TYPE"),
            (":ok:all:", "TYPE"),
            (":ok:all::", "TYPE"),
            (":maybe:all:::", "maybe"),
            (":ok:both:::", "both"),
            (":map:a:b::ok:all:::", "last"),
            (":map:a::", "prepend"),
        ] {
            let why = XattrMap::parse(text).expect_err(text);
            assert!(why.contains(says), "{text}: {why}");
        }
    }
}
