// Package cache keeps what was built in folders named by the content that it was built from.
//
// An entry is a folder of files: ROOT/entries/GROUP/KEY/FILE. A file is written elsewhere and then
// renamed into its entry, so an interrupted build leaves nothing that looks finished; a lock for
// each group makes two processes build one after the other, not both.
package cache

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// keepKeys is how many keys of a group survive however old they are: the current one and the
	// one that a change of branch goes back to.
	keepKeys = 2
	// keepFor is how long a further key stays after its last use.
	keepFor = 7 * 24 * time.Hour
)

// A Store is a cache below one folder. The zero value is not usable.
type Store struct {
	Root string
	// Waiting is called when another process holds a lock that is needed.
	Waiting func(what string)
}

// Default is the folder of this cluster's cache: $QTLS_CACHE, else $XDG_CACHE_HOME/qtls, else
// ~/.cache/qtls, and in it "cluster".
func Default() (string, error) {
	if d := os.Getenv("QTLS_CACHE"); d != "" {
		return filepath.Abs(filepath.Join(d, "cluster"))
	}
	d, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no cache folder: %w; set QTLS_CACHE", err)
	}
	return filepath.Join(d, "qtls", "cluster"), nil
}

// Ensure returns the folder of an entry that holds the files, building those that are missing.
// build is given the names of the missing files and an empty folder to leave them in.
func (s Store) Ensure(ctx context.Context, group, key string, files []string, build func(missing []string, dir string) error) (string, error) {
	entry := filepath.Join(s.Root, "entries", group, key)
	if len(missing(entry, files)) == 0 {
		return entry, touch(entry)
	}
	unlock, err := s.lock(ctx, group)
	if err != nil {
		return "", err
	}
	defer unlock()
	todo := missing(entry, files) // another process may have built it while this one waited
	if len(todo) == 0 {
		return entry, touch(entry)
	}
	work := filepath.Join(s.Root, "work", group)
	if err := os.RemoveAll(work); err != nil { // an interrupted build's; the lock is ours
		return "", err
	}
	if err := os.MkdirAll(work, 0o755); err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	if err := build(todo, work); err != nil {
		return "", err
	}
	if err := os.MkdirAll(entry, 0o755); err != nil {
		return "", err
	}
	for _, f := range todo {
		if err := os.Rename(filepath.Join(work, f), filepath.Join(entry, f)); err != nil {
			return "", fmt.Errorf("the build of %s left no %s: %w", group, f, err)
		}
	}
	if err := touch(entry); err != nil {
		return "", err
	}
	return entry, prune(filepath.Dir(entry), time.Now())
}

// Has says whether an entry holds the files, so that Ensure would build nothing.
func (s Store) Has(group, key string, files []string) bool {
	return len(missing(filepath.Join(s.Root, "entries", group, key), files)) == 0
}

// Folder returns a folder that holds just the named files: names maps a name in the folder to a
// file in the cache. They are hard links, so the folder stays whole when an entry is pruned.
func (s Store) Folder(ctx context.Context, group string, names map[string]string) (string, error) {
	var inputs, files []string
	for name, target := range names {
		inputs = append(inputs, name+"="+target)
		files = append(files, name)
	}
	slices.Sort(inputs)
	slices.Sort(files)
	return s.Ensure(ctx, group, Key(inputs...), files, func(missing []string, dir string) error {
		for _, name := range missing {
			if err := os.Link(names[name], filepath.Join(dir, name)); err != nil {
				return err
			}
		}
		return nil
	})
}

func missing(entry string, files []string) []string {
	var m []string
	for _, f := range files {
		if _, err := os.Stat(filepath.Join(entry, f)); err != nil {
			m = append(m, f)
		}
	}
	return m
}

// touch records the use of an entry, for prune.
func touch(entry string) error {
	now := time.Now()
	return os.Chtimes(entry, now, now)
}

func (s Store) lock(ctx context.Context, group string) (unlock func(), err error) {
	dir := filepath.Join(s.Root, "locks")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("the cache cannot be written: %w; set QTLS_CACHE to a folder that can", err)
	}
	return Lock(ctx, filepath.Join(dir, group), func() {
		if s.Waiting != nil {
			s.Waiting("another process builds " + group)
		}
	})
}

// Lock takes the lock file, which is made when missing. It calls waiting once when the lock is held
// elsewhere and then waits until it is free or ctx is done. The kernel frees a dead process's lock.
func Lock(ctx context.Context, path string, waiting func()) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return nil, err
	}
	for told := false; ; told = true {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if err != unix.EWOULDBLOCK && err != unix.EINTR {
			f.Close()
			return nil, fmt.Errorf("locking %s: %w", path, err)
		}
		if !told {
			waiting()
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, context.Cause(ctx)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// prune removes the keys of a group that are neither recent in rank nor in time.
func prune(group string, now time.Time) error {
	entries, err := os.ReadDir(group)
	if err != nil {
		return err
	}
	type used struct {
		name string
		at   time.Time
	}
	var keys []used
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			continue // removed by another process
		}
		keys = append(keys, used{e.Name(), info.ModTime()})
	}
	slices.SortFunc(keys, func(a, b used) int { return cmp.Compare(b.at.UnixNano(), a.at.UnixNano()) })
	for i, k := range keys {
		if i >= keepKeys && now.Sub(k.at) > keepFor {
			if err := os.RemoveAll(filepath.Join(group, k.name)); err != nil {
				return err
			}
		}
	}
	return nil
}
