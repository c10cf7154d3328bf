package main

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// check is one thing that must hold of a built image. It returns what it found, for the report.
type check struct {
	what string
	run  func(context.Context, *container) (string, error)
}

// checksOf lists what must hold of an image: some of every image, some of its own.
func checksOf(i image) []check {
	checks := []check{
		{"runs as user 65532", nonRoot},
		{"no setuid or setgid files", noSetID},
	}
	if linked := slices.ContainsFunc(i.binaries, func(name string) bool { return programs[name].linked }); len(i.binaries) > 0 && !linked {
		checks = append(checks, check{"programs are static", staticPrograms(i.binaries)})
	}
	if i.suite != "" {
		checks = append(checks, check{"no apt lists, mirrors or policies of the build", cleanApt})
	}
	if i.carries(oqsprovider.name) {
		checks = append(checks, check{"openssl loads oqsprovider", loadsProvider})
	}
	switch i.id {
	case "gateway":
		checks = append(checks,
			check{"haproxy is 3.2 on OpenSSL 3.5", gatewayVersions},
			check{"haproxy -c accepts post-quantum groups", configuration},
			check{"haproxy serves X25519MLKEM768 with ML-DSA-65", handshake},
			check{"haproxy takes a key in an HSM", keyInHSM},
		)
	case "redis":
		checks = append(checks,
			check{"valkey-server is 8.1", valkeyVersion},
			check{"valkey-server serves X25519MLKEM768", valkeyHandshake},
		)
	case "hsm":
		checks = append(checks, check{"hsmd makes a token of kryoptic", makesToken})
	case "k6":
		checks = append(checks,
			check{"qtls-k6 has the module k6/x/qtls", k6HasModule},
			check{"its license is beside it", k6License},
			check{"it connects with X25519MLKEM768 and ML-DSA-65", k6Handshake},
		)
	case "nginx":
		checks = append(checks,
			check{"nginx is 1.26 on OpenSSL 3.5", nginxVersions},
			check{"nginx serves X25519MLKEM768 with ML-DSA-65", nginxHandshake},
		)
	case "client-bookworm":
		checks = append(checks, check{"openssl is 3.0", opensslRelease("3.0")})
	case "operator", "client-trixie":
		checks = append(checks, check{"openssl is 3.5", opensslRelease("3.5")})
	}
	return checks
}

// verify checks the image as it was last built and writes a line a check.
func (b *builder) verify(ctx context.Context, i image, out io.Writer) error {
	r, ok := b.latest(i)
	if !ok {
		return fmt.Errorf("image %s has not been built: images build %s", i.id, i.id)
	}
	if err := errors.Join(b.lock(), requireCommands("buildah", "chroot", "mount")); err != nil {
		return err
	}
	contents, err := readArchive(r.Tar, "")
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp(b.dir, "verify-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	c := &container{root: filepath.Join(dir, "root"), files: filepath.Join(dir, "files"), user: contents.user}
	// From storage, by ID: the tar that is checked and the file system come from the same image.
	if err := b.unpack(ctx, i.id, c.root, strings.TrimPrefix(r.ID, "sha256:")); err != nil {
		return err
	}
	if err := os.Mkdir(c.files, 0o777); err != nil {
		return err
	}
	// The umask took the group's and others' right to write, which the unprivileged user needs.
	if err := os.Chmod(c.files, 0o777); err != nil {
		return err
	}
	var failed []error
	fmt.Fprintln(out, r.Reference)
	for _, check := range checksOf(i) {
		found, err := check.run(ctx, c)
		if err != nil {
			failed = append(failed, fmt.Errorf("%s: %s: %w", i.id, check.what, err))
			fmt.Fprintf(out, "  FAILED  %s: %v\n", check.what, err)
			continue
		}
		fmt.Fprintf(out, "  ok      %s: %s\n", check.what, found)
	}
	return errors.Join(failed...)
}

// container is an unpacked image to run commands in, much as a restricted pod does.
type container struct {
	root  string
	files string // seen inside as /mnt, writable
	user  string
}

// enter runs a command in a read-only root with /tmp in memory, as the image's user. Its mounts are the command's own.
const enter = `set -eu
root=$1 files=$2 user=$3; shift 3
mount --bind "$root" "$root"
mount -o remount,bind,ro "$root"
mount --bind "$files" "$root/mnt"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
exec chroot --userspec="$user" "$root" "$@"`

func (c *container) exec(ctx context.Context, args ...string) (string, error) {
	if os.Geteuid() != 0 {
		return "", errors.New("running a command in the image needs root")
	}
	cmd := inPrivateMounts(command(ctx, "sh", append([]string{"-c", enter, "enter", c.root, c.files, c.user}, args...)...))
	// A container's environment is its own: the caller's OPENSSL_CONF and the like stay outside.
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	return output(cmd)
}

func nonRoot(_ context.Context, c *container) (string, error) {
	if c.user != "65532:65532" {
		return "", fmt.Errorf("the image's user is %q, want 65532:65532", c.user)
	}
	return c.user, nil
}

func noSetID(_ context.Context, c *container) (string, error) {
	found, err := setIDFiles(c.root)
	if err == nil && len(found) > 0 {
		err = fmt.Errorf("found %s", strings.Join(found, ", "))
	}
	return "none", err
}

func staticPrograms(names []string) func(context.Context, *container) (string, error) {
	return func(_ context.Context, c *container) (string, error) {
		for _, name := range names {
			if err := static(filepath.Join(c.root, "usr/bin", name)); err != nil {
				return "", err
			}
		}
		return strings.Join(names, ", "), nil
	}
}

// static says whether an executable runs without a dynamic loader.
func static(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if info.Mode().Perm()&0o111 != 0o111 {
		return fmt.Errorf("%s has mode %v: not everybody may execute it", path, info.Mode())
	}
	f, err := elf.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return fmt.Errorf("%s is linked dynamically: build it with CGO_ENABLED=0", path)
		}
	}
	return nil
}

// cleanApt looks for what a build may leave behind: package lists, and configuration that names the newer suite or
// lifts the validity check.
func cleanApt(_ context.Context, c *container) (string, error) {
	lists, err := filepath.Glob(filepath.Join(c.root, "var/lib/apt/lists/*"))
	if err != nil {
		return "", err
	}
	if len(lists) > 0 {
		return "", fmt.Errorf("%d package lists", len(lists))
	}
	err = filepath.WalkDir(filepath.Join(c.root, "etc/apt"), func(path string, entry os.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		if err == nil && leftover.Match(text) {
			err = fmt.Errorf("%s holds %q", strings.TrimPrefix(path, c.root), leftover.Find(text))
		}
		return err
	})
	return "none", err
}

var leftover = regexp.MustCompile(`\bsid\b|Check-Valid-Until|Pin-Priority`)

func gatewayVersions(ctx context.Context, c *container) (string, error) {
	out, err := c.exec(ctx, "haproxy", "-vv")
	if err != nil {
		return "", err
	}
	v, err := parseHAProxy(out)
	if err != nil {
		return "", err
	}
	if !strings.HasPrefix(v.haproxy, "3.2.") || !strings.HasPrefix(v.openssl, "3.5.") {
		return "", fmt.Errorf("found HAProxy %s on OpenSSL %s", v.haproxy, v.openssl)
	}
	return fmt.Sprintf("HAProxy %s on OpenSSL %s", v.haproxy, v.openssl), nil
}

func opensslRelease(want string) func(context.Context, *container) (string, error) {
	return func(ctx context.Context, c *container) (string, error) {
		out, err := c.exec(ctx, "openssl", "version")
		if err != nil {
			return "", err
		}
		v, err := parseOpenSSL(out)
		if err == nil && !strings.HasPrefix(v, want+".") {
			err = fmt.Errorf("found OpenSSL %s", v)
		}
		return "OpenSSL " + v, err
	}
}

func loadsProvider(ctx context.Context, c *container) (string, error) {
	out, err := c.exec(ctx, "openssl", "list", "-providers", "-provider", "default", "-provider", "oqsprovider")
	if err != nil {
		return "", err
	}
	return parseProvider(out, "oqsprovider")
}

// keyInHSM has haproxy read a certificate whose key is one of an HSM that nobody answers for, which it can: the module shows
// what its configuration says. Nothing loads the provider unless it is named.
func keyInHSM(ctx context.Context, c *container) (string, error) {
	files := map[string][]byte{
		"pkcs11.conf": []byte("[slot]\nlabel = pool\n[member none]\naddress = 127.0.0.1:1\nca-file = /mnt/hsm.crt\n" +
			"certificate-file = /mnt/hsm.crt\nkey-file = /mnt/hsm.key\n[key web]\npublic-key = /mnt/hsm.pub\n"),
		"reference.cnf": []byte("asn1 = SEQUENCE:reference\n[reference]\ndescription = \"VISIBLESTRING:PKCS#11 Provider URI v1.0\"\n" +
			"uri = \"UTF8String:pkcs11:token=pool;object=web;type=private\"\n"),
		"hsm.cfg": []byte("global\n    ssl-provider default\n    ssl-provider pkcs11\n    ssl-mode-async\n" +
			"defaults\n    timeout connect 5s\n    timeout client 5s\n    timeout server 5s\n" +
			"frontend probe\n    bind unix@/tmp/probe.sock ssl crt /mnt/hsm.pem\n"),
	}
	if err := writeFiles(c.files, files); err != nil {
		return "", err
	}
	out, err := c.exec(ctx, "sh", "-euc", `cd /mnt
		openssl req -x509 -newkey ml-dsa-65 -nodes -subj /CN=probe.example -days 1 -keyout hsm.key -out hsm.crt 2>/dev/null
		openssl pkey -in hsm.key -pubout -out hsm.pub
		openssl asn1parse -genconf reference.cnf -noout -out reference.der
		{ cat hsm.crt; echo "-----BEGIN PKCS#11 PROVIDER URI-----"; openssl base64 -in reference.der; echo "-----END PKCS#11 PROVIDER URI-----"; } > hsm.pem
		QTLS_PKCS11_CONFIG=/mnt/pkcs11.conf haproxy -c -f hsm.cfg 2>&1
		openssl list -providers | grep -c pkcs11 || true`)
	if err != nil {
		return "", err
	}
	if !strings.HasSuffix(strings.TrimSpace(out), "\n0") && strings.TrimSpace(out) != "0" {
		return "", fmt.Errorf("something loads the provider for keys in HSMs unasked: %s", out)
	}
	return "libqtls_pkcs11.so, by pkcs11-provider", nil
}

// makesToken has hsmd make a token of kryoptic, as the pod of a member does: twice, for a pod that starts again.
func makesToken(ctx context.Context, c *container) (string, error) {
	err := writeFiles(c.files, map[string][]byte{
		"kryoptic.conf": []byte("[[slots]]\nslot = 1\ndbtype = \"sqlite\"\ndbargs = \"/tmp/token.sql\"\n"),
		"pin":           []byte("pin-of-a-check"), "so-pin": []byte("so-pin-of-a-check"),
	})
	if err != nil {
		return "", err
	}
	out, err := c.exec(ctx, "sh", "-euc", `export KRYOPTIC_CONF=/mnt/kryoptic.conf
		for time in first second; do
			hsmd init-soft-token --module /usr/lib/pkcs11/libkryoptic_pkcs11.so --label check --pin-file /mnt/pin --so-pin-file /mnt/so-pin 2>&1
		done`)
	if want := "hsmd: token \"check\" is initialised\nhsmd: token \"check\" is initialised already"; err == nil && strings.TrimSpace(out) != want {
		err = fmt.Errorf("it said %q, want %q", out, want)
	}
	return "made, and found", err
}

// probeConfiguration listens on a unix socket: no network is needed to shake hands with it.
const probeConfiguration = `global
    tune.bufsize 65536
defaults
    mode http
    timeout connect 5s
    timeout client 5s
    timeout server 5s
frontend probe
    bind unix@/tmp/probe.sock ssl crt /mnt/probe.pem ssl-min-ver TLSv1.3 curves X25519MLKEM768
    http-request return status 200
`

// certificate writes an ML-DSA-65 certificate and the probe's configuration to /mnt.
func certificate(ctx context.Context, c *container) error {
	if err := os.WriteFile(filepath.Join(c.files, "probe.cfg"), []byte(probeConfiguration), 0o644); err != nil {
		return err
	}
	_, err := c.exec(ctx, "sh", "-euc", `cd /mnt
		openssl req -x509 -newkey ml-dsa-65 -nodes -subj /CN=probe.example -days 1 -keyout probe.key -out probe.crt
		cat probe.crt probe.key > probe.pem`)
	return err
}

func configuration(ctx context.Context, c *container) (string, error) {
	if err := certificate(ctx, c); err != nil {
		return "", err
	}
	out, err := c.exec(ctx, "haproxy", "-c", "-V", "-f", "/mnt/probe.cfg")
	if err == nil && !strings.Contains(out, "Configuration file is valid") {
		err = fmt.Errorf("it said %q", out)
	}
	return strings.TrimSpace(out), err
}

func handshake(ctx context.Context, c *container) (string, error) {
	if err := certificate(ctx, c); err != nil {
		return "", err
	}
	out, err := c.exec(ctx, "sh", "-euc", `
		haproxy -db -f /mnt/probe.cfg & haproxy=$!
		trap 'kill $haproxy' EXIT
		for wait in 1 2 3 4 5 6 7 8 9 10; do [ -S /tmp/probe.sock ] && break; sleep 0.2; done
		openssl s_client -unix /tmp/probe.sock -groups X25519MLKEM768 -verify_return_error -CAfile /mnt/probe.crt </dev/null`)
	if err != nil {
		return "", err
	}
	return parseHandshake(out)
}
