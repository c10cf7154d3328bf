// Package images makes container images from programs, with no registry and no daemon.
package images

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os"
	"runtime"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// An Image is one static program and how it is started.
type Image struct {
	// Reference is the image's full name with its tag.
	Reference string
	// Program is the name of the file at the root of the image.
	Program string
	// Args follow the program in the entry point.
	Args []string
	// User is "UID:GID"; empty means root.
	User string
}

// Write makes the image from the program's file as an archive (docker-archive) at path. Equal
// inputs make equal archives.
func Write(path string, image Image, program string) error {
	content, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	built, err := build(image, content)
	if err != nil {
		return fmt.Errorf("image %s: %w", image.Reference, err)
	}
	tag, err := name.NewTag(image.Reference, name.StrictValidation)
	if err != nil {
		return err
	}
	return tarball.WriteToFile(path, tag, built)
}

func build(image Image, program []byte) (v1.Image, error) {
	archive, err := layer(image.Program, program)
	if err != nil {
		return nil, err
	}
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive)), nil })
	if err != nil {
		return nil, err
	}
	img, err := mutate.AppendLayers(empty.Image, l)
	if err != nil {
		return nil, err
	}
	file, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	file.OS, file.Architecture = "linux", runtime.GOARCH
	file.Config = v1.Config{
		Entrypoint: append([]string{"/" + image.Program}, image.Args...),
		User:       image.User,
	}
	return mutate.ConfigFile(img, file)
}

func layer(name string, content []byte) ([]byte, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	// Programs written in Go look for a folder for temporary files.
	if err := w.WriteHeader(&tar.Header{Name: "tmp/", Typeflag: tar.TypeDir, Mode: 0o1777}); err != nil {
		return nil, err
	}
	if err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(content))}); err != nil {
		return nil, err
	}
	if _, err := w.Write(content); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}
