package cache

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// Key names content by everything that it is made from: equal inputs give equal keys, and the
// length before each input keeps ("ab", "c") and ("a", "bc") apart.
func Key(inputs ...string) string {
	h := sha256.New()
	for _, s := range inputs {
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(s)))
		h.Write(n[:])
		h.Write([]byte(s))
	}
	return hex.EncodeToString(h.Sum(nil)[:12])
}

// Module returns the inputs of a Go module for Key: the names and contents of its go.mod, go.sum
// and every .go file of it outside tests.
func Module(dir string) ([]string, error) {
	var files []string
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		isTest, _ := filepath.Match("*_test.go", name)
		if d.Type().IsRegular() && (name == "go.mod" || name == "go.sum" || filepath.Ext(name) == ".go" && !isTest) {
			files = append(files, path)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reading the Go module %s: %w", dir, err)
	}
	slices.Sort(files)
	var inputs []string
	for _, f := range files {
		content, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		rel, err := filepath.Rel(dir, f)
		if err != nil {
			return nil, err
		}
		inputs = append(inputs, rel, string(content))
	}
	if len(inputs) == 0 {
		return nil, fmt.Errorf("the Go module %s has no files", dir)
	}
	return inputs, nil
}
