package main

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
)

// archive is what is read from a docker-archive tar.
type archive struct {
	// user is the image's numeric user and group, "65532:65532".
	user string
	// file is the content of the file that was asked for; nil when no layer has it.
	file []byte
}

// readArchive reads an image's configuration, and the file of the given name (no leading slash) as a container sees it:
// from the topmost layer that has it. It reads one of Debian's own files, which no layer here removes: whiteouts are not
// looked at.
func readArchive(tarPath, name string) (archive, error) {
	f, err := os.Open(tarPath)
	if err != nil {
		return archive{}, err
	}
	defer f.Close()
	var (
		found   = map[string][]byte{} // by layer
		configs = map[string][]byte{}
		r       = tar.NewReader(f)
	)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return archive{}, fmt.Errorf("%s: %w", tarPath, err)
		}
		switch {
		case h.Typeflag != tar.TypeReg:
		case strings.HasSuffix(h.Name, ".tar"):
			content, err := fileInLayer(r, name)
			if err != nil {
				return archive{}, fmt.Errorf("%s: layer %s: %w", tarPath, h.Name, err)
			}
			if content != nil {
				found[h.Name] = content
			}
		case strings.HasSuffix(h.Name, ".json"):
			if configs[h.Name], err = io.ReadAll(r); err != nil {
				return archive{}, fmt.Errorf("%s: %w", tarPath, err)
			}
		}
	}
	var manifest []struct {
		Config string
		Layers []string
	}
	if err := json.Unmarshal(configs["manifest.json"], &manifest); err != nil || len(manifest) != 1 {
		return archive{}, fmt.Errorf("%s: no manifest.json of one image (%v)", tarPath, err)
	}
	var config struct{ Config struct{ User string } }
	if err := json.Unmarshal(configs[manifest[0].Config], &config); err != nil {
		return archive{}, fmt.Errorf("%s: the image's configuration: %w", tarPath, err)
	}
	a := archive{user: config.Config.User}
	for _, layer := range manifest[0].Layers {
		if content, ok := found[layer]; ok {
			a.file = content
		}
	}
	return a, nil
}

// fileInLayer returns a regular file of a layer, or nil.
func fileInLayer(layer io.Reader, name string) ([]byte, error) {
	r := tar.NewReader(layer)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		if h.Typeflag == tar.TypeReg && path.Clean(h.Name) == name {
			return io.ReadAll(r)
		}
	}
}

// writeFiles writes small files into a folder.
func writeFiles(dir string, files map[string][]byte) error {
	for _, name := range sortedKeys(files) {
		if err := os.WriteFile(path.Join(dir, name), files[name], 0o644); err != nil {
			return err
		}
	}
	return nil
}

// setIDFiles lists the files below dir that run with another user's or group's rights.
func setIDFiles(dir string) ([]string, error) {
	var found []string
	err := fs.WalkDir(os.DirFS(dir), ".", func(p string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		info, err := entry.Info()
		if err == nil && info.Mode()&(fs.ModeSetuid|fs.ModeSetgid) != 0 {
			found = append(found, "/"+p)
		}
		return err
	})
	return found, err
}
