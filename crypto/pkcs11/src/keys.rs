//! The keys that the slot shows. They follow the configuration file while a program runs: a certificate that is renewed has
//! a new key, and no program is restarted for it. Besides them there are those that the program itself had made.

use crate::{
    config::{Config, Key},
    library::{lock, Stamp},
};
use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

/// A key keeps its number, and so its objects keep their handles, as long as the process lives: programs remember them.
pub struct Keys {
    list: Mutex<Vec<Entry>>,
    file: Option<Mutex<File>>,
}

struct Entry {
    key: Arc<Key>,
    /// The file has it, or it was made.
    present: bool,
    /// This program had it made: it stays until the program ends, or the file has its label.
    made: bool,
}

/// Where the keys are read from.
pub struct File {
    path: PathBuf,
    /// When it was read without an error.
    read: Stamp,
    /// The last error, so that it is told once.
    told: String,
    log: fn(&str),
}

/// Reads a configuration, and what is needed to read it again.
pub fn read(path: &Path, log: fn(&str)) -> Result<(Config, File), String> {
    let told = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
    // What is written between the two makes a newer file.
    let stamp = Stamp::of(path).map_err(|e| told(&e))?;
    let text = fs::read_to_string(path).map_err(|e| told(&e))?;
    let config = Config::parse(&text, &|p| fs::read(p)).map_err(|e| told(&e))?;
    Ok((config, File { path: path.into(), read: stamp, told: String::new(), log }))
}

impl Keys {
    pub fn new(keys: &[Arc<Key>], file: Option<File>) -> Keys {
        let list = keys.iter().map(|key| Entry { key: key.clone(), present: true, made: false }).collect();
        Keys { list: Mutex::new(list), file: file.map(Mutex::new) }
    }

    /// A key by its number, one too that is not shown any more: a handshake that has chosen its certificate signs with it yet.
    pub fn get(&self, number: usize) -> Option<Arc<Key>> {
        lock(&self.list).get(number).map(|e| e.key.clone())
    }

    /// All that are shown, with their numbers.
    pub fn all(&self) -> Vec<(usize, Arc<Key>)> {
        let list = lock(&self.list);
        list.iter().enumerate().filter(|(_, e)| e.present).map(|(n, e)| (n, e.key.clone())).collect()
    }

    pub fn set(&self, keys: &[Arc<Key>]) {
        let mut list = lock(&self.list);
        for entry in list.iter_mut() {
            entry.present = entry.made && keys.iter().all(|key| key.label != entry.key.label);
        }
        for key in keys {
            match list.iter_mut().find(|e| e.key == *key) {
                Some(entry) => entry.present = true,
                None => list.push(Entry { key: key.clone(), present: true, made: false }),
            }
        }
    }

    /// Shows a key that was made, and says its number.
    pub fn add(&self, key: Arc<Key>) -> usize {
        let mut list = lock(&self.list);
        list.push(Entry { key, present: true, made: true });
        list.len() - 1
    }

    /// Reads the file again if it has changed, and says whether it did. With an error the keys stay as they are: it is read
    /// again the next time, for what it names may have been missing.
    pub fn reload(&self) -> bool {
        let Some(mut file) = self.file.as_ref().map(lock) else { return false };
        match Stamp::of(&file.path) {
            Ok(stamp) if stamp == file.read => return false,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return false, // it is being replaced
            _ => {}
        }
        match read(&file.path, file.log) {
            Ok((config, new)) => {
                self.set(&config.keys);
                *file = new;
                true
            }
            Err(e) => {
                let (log, news) = (file.log, file.told != e);
                file.told.clone_from(&e);
                drop(file); // whoever takes messages may be slow
                if news {
                    log(&format!("{e}; the keys stay as they were"));
                }
                false
            }
        }
    }
}
