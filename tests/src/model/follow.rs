//! A model that follows an engine: each call is made on both, and they must
//! agree. Without remounts, crashes and full regions, which
//! [`Runner`](super::Runner) has.

use std::collections::BTreeMap;

use pramfs::{
    Error, FileType,
    inode::{Fs, Ino, Time},
};

use super::compare::{Answer, Differs, Ids, Times, call, compare, compare_tree};
use super::state::{Body, Call, Failure, Model, Node, NodeId, ROOT, Value};

/// A model, and which of its nodes is which inode.
#[derive(Debug, Clone)]
pub struct Follower {
    /// The model.
    pub model: Model,
    /// The region may be full: the engine may refuse a call for want of space,
    /// or write a part.
    pub full: bool,
    ids: Ids,
}

impl Follower {
    /// Beside an empty file system that was made at `now`.
    pub fn new(now: Time) -> Follower {
        Follower {
            model: Model::new(now),
            full: false,
            ids: Ids::root(),
        }
    }

    /// The inode of a node.
    pub fn ino(&self, node: NodeId) -> Ino {
        self.ids.ino(node)
    }

    /// The node that a path leads to, symbolic links not followed.
    pub fn find(&self, path: &str) -> Option<NodeId> {
        let names = path.split('/').filter(|n| !n.is_empty());
        names
            .into_iter()
            .try_fold(ROOT, |at, name| match &self.model.get(at)?.body {
                Body::Dir { entries, .. } => entries.get(name.as_bytes()).copied(),
                _ => None,
            })
    }

    /// Makes a call on both. Where both refuse it alike, that is `Ok(false)`.
    ///
    /// # Errors
    /// What differs.
    pub fn call(&mut self, fs: &Fs, c: &Call) -> Differs<bool> {
        let next = self.model.next_id();
        let answer = call(fs, &self.ids, c);
        if self.full {
            match (&answer, c) {
                (Err(Error::NoSpace(_)), _) => return self.refused(fs, c),
                (Ok(Answer::Count(n)), c)
                    if self.model.wanted(c).is_some_and(|wanted| *n < wanted) =>
                {
                    let part = c.shortened(*n);
                    let value = self.model.call(&part).map_err(|e| format!("{e:?}"))?;
                    compare(&self.model, &self.ids, &part, &Answer::Count(*n), &value)?;
                    return Ok(true);
                }
                _ => {}
            }
        }
        match (answer, self.model.call(c)) {
            (Ok(answer), Ok(value)) => {
                if let (
                    Call::Make { .. } | Call::MakeUnnamed { .. },
                    Answer::Attr(a),
                    Value::Node(id),
                ) = (c, &answer, &value)
                {
                    self.ids.made(*id, a)?;
                }
                if let Call::Rename { parent, name, .. } = c
                    && self.model.next_id() > next
                {
                    let white = fs
                        .lookup(self.ids.ino(*parent), name)
                        .map_err(|e| e.to_string())?;
                    if white.kind != FileType::CharDevice {
                        return Err(format!("the whiteout is a {:?}", white.kind));
                    }
                    self.ids.made(next, &white)?;
                }
                compare(&self.model, &self.ids, c, &answer, &value)?;
                Ok(true)
            }
            (Err(e), Err(Failure(errno))) if e.errno() == errno => Ok(false),
            (Err(e), Err(Failure(errno))) => {
                Err(format!("the engine fails with {e}, the model with {errno}"))
            }
            (Err(e), Ok(_)) => Err(format!("the engine fails: {e}")),
            (Ok(_), Err(Failure(errno))) => {
                Err(format!("the engine does what should fail with {errno}"))
            }
        }
    }

    /// A call was refused for want of space: nothing has changed, but that
    /// blocks which were taken and given back leave new times.
    fn refused(&mut self, fs: &Fs, c: &Call) -> Differs<bool> {
        if let Err(Failure(errno)) = self.model.clone().call(c) {
            return Err(format!("no space where errno {errno} is right"));
        }
        if let Call::Write { node, .. } | Call::Copy { node, .. } | Call::Fallocate { node, .. } = c
        {
            let a = fs.getattr(self.ids.ino(*node)).map_err(|e| e.to_string())?;
            let n = self.model.node(*node);
            let (old, now) = ((n.mtime, n.ctime), self.model.now);
            if a.mtime != old.0 && a.mtime != now || a.ctime != old.1 && a.ctime != now {
                return Err(format!("times after it was refused: {a:?}"));
            }
            if (a.mtime, a.ctime) != old {
                self.model.set_times(*node, a.mtime, a.ctime);
            }
        }
        Ok(false)
    }

    /// Makes a call on the engine alone.
    ///
    /// # Errors
    /// Those of the engine.
    pub fn engine(&self, fs: &Fs, c: &Call) -> pramfs::Result<()> {
        call(fs, &self.ids, c).map(drop)
    }

    /// Takes over what was stored through a view. `before` is the node as it
    /// was. Its times are those of the engine, as far as they are possible, and
    /// may lag after a crash.
    ///
    /// # Errors
    /// What differs.
    pub fn stored(
        &mut self,
        fs: &Fs,
        node: NodeId,
        (offset, bytes): (u64, &[u8]),
        before: &Node,
    ) -> Differs {
        self.model
            .write(node, Some(offset), bytes)
            .map_err(|e| format!("the model refuses a store: {e:?}"))?;
        let a = fs.getattr(self.ids.ino(node)).map_err(|e| e.to_string())?;
        let (now, old) = (self.model.now, (before.mtime, before.ctime));
        let possible = [old, (old.0, now), (now, now)];
        if !possible.contains(&(a.mtime, a.ctime)) {
            return Err(format!("times after a store: {a:?}"));
        }
        let n = self.model.node_mut(node);
        (n.mtime, n.ctime) = (a.mtime, a.ctime);
        n.older_times = before.older_times.clone();
        n.older_times.extend([old, (old.0, now)]);
        Ok(())
    }

    /// Notes times that a file may show after a crash.
    pub fn may_show(&mut self, node: NodeId, mtime: Time, ctime: Time) {
        let n = self.model.node_mut(node);
        n.older_times.push((mtime, ctime));
    }

    /// Compares everything, times included.
    ///
    /// # Errors
    /// What differs.
    pub fn compare(&mut self, fs: &Fs) -> Differs {
        compare_tree(fs, &mut self.model, &self.ids, Times::Exact)
    }

    /// mtime and ctime that inodes may have after a crash: the latest, and
    /// those before overwrites.
    pub fn lag(&self) -> BTreeMap<Ino, Vec<(Time, Time)>> {
        let nodes = self.model.nodes();
        nodes
            .map(|(id, n)| {
                let mut times = n.older_times.clone();
                times.push((n.mtime, n.ctime));
                (self.ids.ino(id), times)
            })
            .collect()
    }
}
