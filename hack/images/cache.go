package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// cache is the folder outside the checkout that holds all that this program makes:
//
//	bin/NAME, bin/NAME.key       static executables, and the key of their sources
//	storage/, run/               buildah's containers storage, apart from the user's own
//	base/SUITE.key               the key of the Debian base in that storage
//	IMAGE/KEY/                   a built image: tar, SBOM, packages.txt, image.json
//	IMAGE/current                a link to the latest of them
//	rootfs/IMAGE-KEY/            an unpacked root file system without the binaries
//	rootfs/IMAGE                 a link to the latest of them
//	rootfs/toolchain-KEY/        the root file system in which cargo runs
//	cargo/home, src, target-KEY  cargo's downloads, the copy of crypto/ that it sees, and what a toolchain compiled
//	provider/KEY/out/            the OpenSSL provider as images carry it; beside it, the crates in it
//	hsmd/KEY/out/                hsmd, likewise
//	kryoptic/KEY/out/            kryoptic, likewise
//	log/                         the output of the commands that were run
type cache struct{ dir string }

// openCache makes the cache folder.
func openCache() (*cache, error) {
	base := os.Getenv("QTLS_CACHE")
	if base == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return nil, fmt.Errorf("no folder for the cache (%w): set QTLS_CACHE", err)
		}
		base = filepath.Join(user, "qtls")
	}
	base, err := filepath.Abs(base)
	if err != nil {
		return nil, err
	}
	c := &cache{filepath.Join(base, "images")}
	for _, sub := range []string{"bin", "base", "cargo", "hsmd", "kryoptic", "log", "provider", "rootfs"} {
		if err := os.MkdirAll(c.path(sub), 0o755); err != nil {
			return nil, fmt.Errorf("make the cache folder: %w", err)
		}
	}
	return c, nil
}

// lock waits for the cache's lock and keeps it until the process ends: two builds at once would write the same files.
func (c *cache) lock() error {
	if held != nil {
		return nil
	}
	f, err := lockFile(c.path("lock"))
	held = f
	return err
}

// lockFile waits for the lock of a file and returns it open; closing it releases the lock.
func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
		return f, nil
	}
	progress("waiting for another build to release %s", path)
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// held keeps the lock's file open for the life of the process.
var held *os.File

func (c *cache) path(elem ...string) string {
	return filepath.Join(append([]string{c.dir}, elem...)...)
}

// keptUnused is how long is kept what nobody uses, in folders that checkouts share: one may compile while another's tests
// still run what it compiled before.
const keptUnused = 24 * time.Hour

// touch notes that a folder is used now. It fails when there is none.
func touch(dir string) error {
	now := time.Now()
	return os.Chtimes(dir, now, now)
}

// removeUnused removes the folders in dir whose names begin with prefix and that nobody has touched for keptUnused, but for
// those to keep.
func removeUnused(dir, prefix string, keep ...string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !e.IsDir() || !strings.HasPrefix(e.Name(), prefix) || slices.Contains(keep, e.Name()) {
			continue
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) { // another process was faster
			continue
		}
		if err != nil {
			return err
		}
		if time.Since(info.ModTime()) > keptUnused {
			if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// has says whether the key file at path holds k.
func has(path string, k key) bool {
	b, err := os.ReadFile(path)
	return err == nil && key(b) == k
}

// link points the symbolic link at path to target, atomically.
func link(target, path string) error {
	tmp := path + ".new"
	if err := os.Remove(tmp); err != nil && !os.IsNotExist(err) {
		return err
	}
	if err := os.Symlink(target, tmp); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// result is what is recorded about a built image (image.json beside its tar).
type result struct {
	// Reference is the image's full name and tag.
	Reference string `json:"reference"`
	// ID is the digest of the image's configuration, which container runtimes show as the image's ID.
	ID string `json:"id"`
	// Tar is the docker-archive, as an absolute path.
	Tar string `json:"tar"`
	// Size is the tar's size in bytes; its layers are not compressed.
	Size int64 `json:"size"`
	// SBOM is the CycloneDX document, as an absolute path.
	SBOM string `json:"sbom"`
	// Packages lists the packages worth a line in the summary as "name version".
	Packages []string `json:"packages,omitempty"`
}

// latest returns the record of the image's last build, and false when there is none.
func (c *cache) latest(i image) (result, bool) { return readResult(c.path(i.id, "current")) }

func readResult(dir string) (result, bool) {
	var r result
	b, err := os.ReadFile(filepath.Join(dir, "image.json"))
	if err != nil || json.Unmarshal(b, &r) != nil {
		return result{}, false
	}
	_, err = os.Stat(r.Tar)
	return r, err == nil
}
