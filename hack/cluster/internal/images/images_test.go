package images

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

func TestAnImageStartsItsProgramAsItsUser(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "program")
	if err := os.WriteFile(program, []byte("ELF"), 0o600); err != nil {
		t.Fatal(err)
	}
	image := Image{Reference: "qtls.local/cluster/tool:v1", Program: "tool", Args: []string{"serve"}, User: "65532:65532"}
	archive := filepath.Join(dir, "tool.tar")
	if err := Write(archive, image, program); err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag(image.Reference)
	if err != nil {
		t.Fatal(err)
	}
	img, err := tarball.ImageFromPath(archive, &tag)
	if err != nil {
		t.Fatalf("the archive does not hold %s: %v", tag, err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if got := config.Config.Entrypoint; !reflect.DeepEqual(got, []string{"/tool", "serve"}) {
		t.Errorf("entry point %v", got)
	}
	if config.Config.User != image.User || config.OS != "linux" {
		t.Errorf("config %+v", config)
	}
}

func TestEqualInputsMakeEqualArchives(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "program")
	if err := os.WriteFile(program, []byte("ELF"), 0o755); err != nil {
		t.Fatal(err)
	}
	var made [2][]byte
	for i := range made {
		path := filepath.Join(dir, "a.tar")
		if err := Write(path, Image{Reference: "qtls.local/a:1", Program: "a"}, program); err != nil {
			t.Fatal(err)
		}
		var err error
		if made[i], err = os.ReadFile(path); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(made[0], made[1]) {
		t.Error("the archives differ")
	}
}

func TestAReferenceWithoutATagIsRefused(t *testing.T) {
	program := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(program, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := Write(program+".tar", Image{Reference: "UPPER", Program: "a"}, program); err == nil {
		t.Error("accepted")
	}
}
