package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// key names a cached thing by all that goes into it. Two equal keys mean that the thing need not be made again.
type key string

// short is the form that goes into names of folders.
func (k key) short() string { return string(k)[:16] }

// keyBuilder hashes labelled parts. Each part is framed by its length, so that no two lists of parts collide.
type keyBuilder struct{ h hash.Hash }

// newKey starts a key. The kind carries a number to raise when this program makes the thing in another way.
func newKey(kind string) *keyBuilder {
	b := &keyBuilder{sha256.New()}
	return b.text("kind", kind)
}

func (b *keyBuilder) text(label, value string) *keyBuilder {
	fmt.Fprintf(b.h, "%d:%s=%d:%s\n", len(label), label, len(value), value)
	return b
}

func (b *keyBuilder) args(label string, values map[string]string) *keyBuilder {
	for _, name := range sortedKeys(values) {
		b.text(label+" "+name, values[name])
	}
	return b
}

// file adds a file's mode and content, under its path relative to the root of what is hashed.
func (b *keyBuilder) file(label, path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	sum, err := hashFile(path)
	if err != nil {
		return err
	}
	b.text(label, fmt.Sprintf("%o %s", info.Mode().Perm(), sum))
	return nil
}

func (b *keyBuilder) sum() key { return key(hex.EncodeToString(b.h.Sum(nil))) }

// hashFile returns the SHA-256 of a file's content in hexadecimal.
func hashFile(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fmt.Errorf("read %s: %w", path, err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// folderFiles lists the files of an image's folder that can reach the image: all but Go sources, which reach it as a
// binary, and documentation.
func folderFiles(dir string) ([]string, error) {
	return walk(dir, func(path string) bool {
		return !strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, ".md")
	})
}

// goSources lists the files of the Go module in dir that can reach a binary: go.mod, go.sum and, as any file beside or
// below a package's sources may be embedded, all files there, without tests and test data. Nested modules are left out.
func goSources(dir string) ([]string, error) {
	files, err := walk(dir, func(path string) bool { return !strings.HasSuffix(path, "_test.go") })
	if err != nil {
		return nil, err
	}
	hasGo := map[string]bool{}
	for _, f := range files {
		if strings.HasSuffix(f, ".go") {
			hasGo[filepath.Dir(f)] = true
		}
	}
	return slices.DeleteFunc(files, func(f string) bool {
		if f == "go.mod" || f == "go.sum" {
			return false
		}
		for d := filepath.Dir(f); ; d = filepath.Dir(d) {
			if hasGo[d] {
				return false
			}
			if d == "." {
				return true
			}
		}
	}), nil
}

// walk lists the regular files below dir for which keep says so, relative to dir and in lexical order. It does not
// enter hidden folders, nested Go modules, test data or build output.
func walk(dir string, keep func(path string) bool) ([]string, error) {
	var files []string
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		name := entry.Name()
		switch {
		case rel == ".":
			return nil
		case entry.IsDir() && (strings.HasPrefix(name, ".") || name == "testdata" || name == "target"):
			return fs.SkipDir
		case entry.IsDir():
			switch _, err := os.Stat(filepath.Join(path, "go.mod")); {
			case err == nil:
				return fs.SkipDir
			case !errors.Is(err, fs.ErrNotExist):
				return err
			}
			return nil
		case entry.Type().IsRegular() && keep(rel):
			files = append(files, rel)
		}
		return nil
	})
	return files, err
}

// files adds the files that list finds in dir, under their relative paths.
func (b *keyBuilder) files(dir string, list func(dir string) ([]string, error)) error {
	files, err := list(dir)
	if err != nil {
		return err
	}
	for _, f := range files {
		if err := b.file(f, filepath.Join(dir, f)); err != nil {
			return err
		}
	}
	return nil
}
