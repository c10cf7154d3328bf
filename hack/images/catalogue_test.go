package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestWordsSelectImages(t *testing.T) {
	for words, want := range map[string]string{
		"":                   "gateway operator redis hsm k6 client-trixie client-bookworm nginx echo",
		"client":             "client-trixie client-bookworm",
		"echo gateway":       "gateway echo",
		"client-trixie echo": "client-trixie echo",
	} {
		images, err := selectImages(strings.Fields(words))
		if err != nil {
			t.Errorf("%q: %v", words, err)
		}
		var got []string
		for _, i := range images {
			got = append(got, i.id)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%q selects %q, want %q", words, got, want)
		}
	}
	if _, err := selectImages([]string{"gateway", "apache"}); err == nil || !strings.Contains(err.Error(), `no image "apache": there are gateway, `) {
		t.Errorf("an unknown image: %v", err)
	}
}

func TestReferences(t *testing.T) {
	want := []string{
		"ghcr.io/qtls-dev/qtls-gateway:1.2.3", "ghcr.io/qtls-dev/qtls-operator:1.2.3", "ghcr.io/qtls-dev/qtls-redis:1.2.3",
		"ghcr.io/qtls-dev/qtls-hsm:1.2.3", "ghcr.io/qtls-dev/qtls-k6:1.2.3",
		"ghcr.io/qtls-dev/qtls-client:trixie", "ghcr.io/qtls-dev/qtls-client:bookworm",
		"ghcr.io/qtls-dev/qtls-nginx:1.2.3", "ghcr.io/qtls-dev/qtls-echo:1.2.3",
	}
	var got []string
	for _, i := range catalogue {
		got = append(got, i.reference("1.2.3"))
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// The catalogue and the Dockerfiles state some facts twice, each for its own builders; these tests hold them together.

func dockerfile(t *testing.T, i image) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "images", i.folder, "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestDockerfilesCompileWithTheToolchainOfGoMod(t *testing.T) {
	mod, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	toolchain, err := toolchainOf(string(mod))
	if err != nil {
		t.Fatal(err)
	}
	want := "FROM docker.io/library/golang:" + strings.TrimPrefix(toolchain, "go") + "-trixie AS build\n"
	for _, i := range catalogue {
		if len(i.binaries) > 0 && !strings.Contains(dockerfile(t, i), want) {
			t.Errorf("images/%s/Dockerfile lacks %q", i.folder, want)
		}
	}
}

func TestDockerfilesTakeTheProgramsOfTheCatalogue(t *testing.T) {
	for _, i := range catalogue {
		text := dockerfile(t, i)
		for _, name := range i.binaries {
			p, known := programs[name]
			if !known {
				t.Errorf("image %s: no program %s", i.id, name)
			}
			if p.toolchain != "" && !strings.Contains(text, "GOTOOLCHAIN="+p.toolchain+" go build ") {
				t.Errorf("images/%s/Dockerfile does not compile %s with %s", i.folder, name, p.toolchain)
			}
			if !strings.Contains(text, "COPY --from=build /out/"+name+" /usr/bin/"+name+"\n") &&
				!strings.Contains(text, "COPY --from=build /out/ /usr/bin/\n") {
				t.Errorf("images/%s/Dockerfile does not copy %s", i.folder, name)
			}
			if license := "\"$(go list -m -f '{{.Dir}}' " + p.licenseOf + ")/LICENSE.md\" /out/LICENSE"; p.licenseOf != "" && !strings.Contains(text, license) {
				t.Errorf("images/%s/Dockerfile does not take %s's license: no %s", i.folder, name, license)
			}
		}
	}
}

func TestDockerfilesBuildLibrariesAlike(t *testing.T) {
	toolchain, err := dockerfileStage(dockerfile(t, catalogue[0]), toolchainStage)
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range catalogue {
		text := dockerfile(t, i)
		if got, _ := dockerfileStage(text, toolchainStage); len(i.libraries) > 0 && got != toolchain {
			t.Errorf("images/%s/Dockerfile: stage %s is not that of the gateway:\n%s", i.folder, toolchainStage, got)
		}
		for _, l := range i.libraries {
			want := "FROM " + toolchainStage + " AS " + l.name + "\nCOPY crypto .\nRUN " + l.command + "\n"
			if got, err := dockerfileStage(text, l.name); err != nil || strings.TrimSpace(got) != strings.TrimSpace(want) {
				t.Errorf("images/%s/Dockerfile: stage %s is\n%s\nwant\n%s (%v)", i.folder, l.name, got, want, err)
			}
			if !strings.Contains(text, "\nCOPY --from="+l.name+" /out/ /\n") {
				t.Errorf("images/%s/Dockerfile does not take what stage %s leaves", i.folder, l.name)
			}
		}
	}
}

func TestDockerfilesRunAsANumericUserOnAKnownBase(t *testing.T) {
	bases := regexp.MustCompile(`(?m)^FROM docker\.io/library/debian:(\S+)-slim AS system$`)
	for _, i := range catalogue {
		text := dockerfile(t, i)
		if !strings.Contains(text, "\nUSER 65532:65532\n") {
			t.Errorf("images/%s/Dockerfile: kubelet cannot tell that the image's user is not root: no line USER 65532:65532", i.folder)
		}
		m := bases.FindStringSubmatch(text)
		switch {
		case i.suite == "" && m != nil:
			t.Errorf("images/%s/Dockerfile starts from Debian, the catalogue says from scratch", i.folder)
		case i.suite != "" && (m == nil || (m[1] != i.suite && m[1] != "${DEBIAN}")):
			t.Errorf("images/%s/Dockerfile does not start from Debian %s", i.folder, i.suite)
		}
	}
}

func TestVersionIsReadFromItsOnePlace(t *testing.T) {
	dir := tree(t, map[string]string{"internal/version/version.go": "package version\n\nconst Version = \"1.2.3-rc.1\"\n"})
	if got, err := projectVersion(dir); err != nil || got != "1.2.3-rc.1" {
		t.Errorf("got %q, %v", got, err)
	}
	if _, err := projectVersion(tree(t, map[string]string{"internal/version/version.go": "package version\n"})); err == nil {
		t.Error("a file without the constant is accepted")
	}
	if got, err := projectVersion("../.."); err != nil || !regexp.MustCompile(`^\d+\.\d+\.\d+`).MatchString(got) {
		t.Errorf("the project's own version is %q, %v", got, err)
	}
}

func TestToolchainIsReadFromGoMod(t *testing.T) {
	if got, err := toolchainOf("module m\n\ngo 1.27.0\n\ntoolchain go1.27.4\n"); err != nil || got != "go1.27.4" {
		t.Errorf("got %q, %v", got, err)
	}
	if _, err := toolchainOf("module m\n\ngo 1.27.0\n"); err == nil {
		t.Error("a go.mod without a toolchain line is accepted")
	}
}
