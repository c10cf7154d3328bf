package build

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"qtls.dev/qtls/hack/cluster/internal/cache"
)

// CertManagerChart returns cert-manager's own Helm chart, packaged. It lies in cert-manager's Go
// module, without a version: its release process fills that in, and so is done here.
func (b *Builder) CertManagerChart(ctx context.Context) (string, error) {
	const file = "cert-manager.tgz"
	version := "v" + CertManagerVersion
	return b.derive(ctx, Helm, "certmanager", "github.com/cert-manager/cert-manager", file, func(helm, module, dir string) error {
		chart := filepath.Join(module, "deploy", "charts", "cert-manager")
		if _, err := output(ctx, helm, "package", chart, "--version", version, "--app-version", version, "--destination", dir); err != nil {
			return err
		}
		return os.Rename(filepath.Join(dir, "cert-manager-"+version+".tgz"), filepath.Join(dir, file))
	})
}

// KwokStages returns the file with which kwok makes its nodes and their pods Ready at once. kwok has
// no stages built in; those of its own project lie in its Go module.
func (b *Builder) KwokStages(ctx context.Context) (string, error) {
	const file = "kwok-stages.yaml"
	return b.derive(ctx, Kubectl, "kube", "sigs.k8s.io/kwok", file, func(kubectl, module, dir string) error {
		stages, err := output(ctx, kubectl, "kustomize", filepath.Join(module, "kustomize", "stage", "fast"))
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, file), stages, 0o644)
	})
}

// derive returns the cached file that a program makes from the content of a Go module, which ours
// (a folder of the sources) requires.
func (b *Builder) derive(ctx context.Context, with Program, ours, module, file string, do func(program, module, dir string) error) (string, error) {
	programs, err := b.Programs(ctx, with)
	if err != nil {
		return "", err
	}
	inputs, err := cache.Module(filepath.Join(b.Sources, ours))
	if err != nil {
		return "", err
	}
	dir, err := b.Cache.Ensure(ctx, file, cache.Key(append(inputs, module)...), []string{file}, func(_ []string, dir string) error {
		content, err := b.moduleDir(ctx, ours, module)
		if err != nil {
			return err
		}
		if err := do(programs[with], content, dir); err != nil {
			return fmt.Errorf("making %s: %w", file, err)
		}
		return nil
	})
	return filepath.Join(dir, file), err
}

// moduleDir returns the folder of the module in the version that ours requires, downloading it when
// missing.
func (b *Builder) moduleDir(ctx context.Context, ours, module string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", module)
	cmd.Dir = filepath.Join(b.Sources, ours) // its go.sum says what the module must be
	cmd.Env = append(os.Environ(), goEnv(false)...)
	out, err := cmd.Output()
	var m struct{ Dir, Error string }
	if jsonErr := json.Unmarshal(out, &m); err != nil || jsonErr != nil || m.Dir == "" {
		return "", fmt.Errorf("downloading %s: %v: %s", module, err, strings.TrimSpace(m.Error))
	}
	return m.Dir, nil
}

// output runs a program and returns its standard output.
func output(ctx context.Context, program string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%s %s: %w: %s", filepath.Base(program), args[0], err, bytes.TrimSpace(errs.Bytes()))
	}
	return out.Bytes(), nil
}
