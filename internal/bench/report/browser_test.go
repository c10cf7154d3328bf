//go:build browser

package report

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"image/png"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// patience is how long the browser may take for anything before the test gives up.
const patience = 3 * time.Minute

// browser is a headless Chromium, spoken to over its debugging pipe.
type browser struct {
	t      *testing.T
	in     io.Writer
	mu     sync.Mutex
	nextID int
	calls  map[int]chan message
	events chan message
}

type message struct {
	ID        int             `json:"id,omitempty"`
	SessionID string          `json:"sessionId,omitempty"`
	Method    string          `json:"method,omitempty"`
	Params    json.RawMessage `json:"params,omitempty"`
	Result    json.RawMessage `json:"result,omitempty"`
	Error     json.RawMessage `json:"error,omitempty"`
}

func startBrowser(t *testing.T) *browser {
	t.Helper()
	path := ""
	for _, name := range []string{"chromium-headless-shell", "chromium"} {
		if found, err := exec.LookPath(name); err == nil {
			path = found
			break
		}
	}
	if path == "" {
		t.Fatal("no Chromium: `hack/deps browser` installs it")
	}
	toR, toW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	fromR, fromW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	// The page is the project's own; the sandbox does not work for root and in
	// containers.
	c := exec.Command(path, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe",
		"--disable-background-networking", "--disable-component-update", "--disable-default-apps", "--disable-sync", "--no-first-run", "--mute-audio",
		"--user-data-dir="+t.TempDir(), "about:blank")
	var log bytes.Buffer
	c.Stderr, c.ExtraFiles = &log, []*os.File{toR, fromW}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	toR.Close()
	fromW.Close()
	b := &browser{t: t, in: toW, calls: map[int]chan message{}, events: make(chan message, 1<<16)}
	read := make(chan struct{})
	go func() {
		defer close(read)
		r := bufio.NewReader(fromR)
		for {
			text, err := r.ReadBytes(0)
			if err != nil {
				return
			}
			var m message
			if json.Unmarshal(bytes.TrimSuffix(text, []byte{0}), &m) != nil {
				continue
			}
			if m.ID == 0 {
				b.events <- m
				continue
			}
			b.mu.Lock()
			b.calls[m.ID] <- m
			b.mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		toW.Close() // it ends with its pipe
		ended := make(chan struct{})
		go func() { _ = c.Wait(); close(ended) }()
		select {
		case <-ended:
		case <-time.After(patience):
			_ = c.Process.Kill()
			<-ended
		}
		fromR.Close()
		<-read
		if t.Failed() {
			t.Logf("the browser's log:\n%s", log.String())
		}
	})
	return b
}

// call a method of the debugging protocol and read its result into result.
func (b *browser) call(session, method string, params, result any) {
	b.t.Helper()
	p, err := json.Marshal(params)
	if err != nil {
		b.t.Fatal(err)
	}
	answer := make(chan message, 1)
	b.mu.Lock()
	b.nextID++
	m := message{ID: b.nextID, SessionID: session, Method: method, Params: p}
	b.calls[m.ID] = answer
	b.mu.Unlock()
	text, err := json.Marshal(m)
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err := b.in.Write(append(text, 0)); err != nil {
		b.t.Fatalf("%s: %v", method, err)
	}
	select {
	case m := <-answer:
		if m.Error != nil {
			b.t.Fatalf("%s: %s", method, m.Error)
		}
		if result != nil {
			if err := json.Unmarshal(m.Result, result); err != nil {
				b.t.Fatalf("%s: %v", method, err)
			}
		}
	case <-time.After(patience):
		b.t.Fatalf("%s: no answer", method)
	}
}

// open an address, wait until it is loaded, and return the events of that.
func (b *browser) open(session, url string) []message {
	b.t.Helper()
	b.call(session, "Page.setLifecycleEventsEnabled", dict{"enabled": true}, nil)
	var navigation struct{ LoaderID, ErrorText string }
	b.call(session, "Page.navigate", dict{"url": url}, &navigation)
	if navigation.ErrorText != "" {
		b.t.Fatalf("%s: %s", url, navigation.ErrorText)
	}
	var seen []message
	limit := time.After(patience)
	for {
		select {
		case m := <-b.events:
			if m.SessionID != session {
				continue
			}
			seen = append(seen, m)
			// The empty page that a tab begins with has a load event too.
			var life struct{ LoaderID, Name string }
			if m.Method == "Page.lifecycleEvent" && json.Unmarshal(m.Params, &life) == nil && life.LoaderID == navigation.LoaderID && life.Name == "load" {
				return seen
			}
		case <-limit:
			b.t.Fatalf("%s does not load", url)
		}
	}
}

type dict = map[string]any

// audit looks at the page as it is laid out. It returns what is wrong.
const audit = `(() => {
  const wrong = [];
  const root = document.scrollingElement;
  if (root.scrollWidth > innerWidth) wrong.push('the page is ' + root.scrollWidth + ' wide');
  const parse = c => { const m = c.match(/[\d.]+/g).map(Number); return m.length > 3 ? m : [...m, 1]; };
  const light = c => { const f = c.slice(0, 3).map(v => v / 255).map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * f[0] + 0.7152 * f[1] + 0.0722 * f[2]; };
  const behind = e => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor); if (c[3] === 1) return c; } return [255, 255, 255, 1]; };
  const contrast = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p); return (x + 0.05) / (y + 0.05); };
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let texts = 0;
  for (let n; n = walk.nextNode();) {
    if (!n.data.trim()) continue;
    const e = n.parentElement;
    if (e.closest('title, desc, details:not([open]) > :not(summary)')) continue;
    texts++;
    const style = getComputedStyle(e), svg = e.closest('svg');
    const c = contrast(parse(svg ? style.fill : style.color), behind(e));
    if (c < 4.5) wrong.push('contrast ' + c.toFixed(2) + ' of "' + n.data.trim().slice(0, 40) + '"');
    const height = e.getBoundingClientRect().height;
    if (svg && height < 10) wrong.push('text ' + height.toFixed(1) + ' high: "' + n.data.trim().slice(0, 40) + '"');
  }
  for (const svg of document.querySelectorAll('figure > svg')) {
    const box = svg.getBoundingClientRect();
    const all = [...svg.querySelectorAll('text')].filter(t => t.textContent).map(t => [t.textContent, t.getBoundingClientRect()]);
    all.forEach(([text, r], i) => {
      if (r.left < box.left - 0.5 || r.right > box.right + 0.5 || r.top < box.top - 1 || r.bottom > box.bottom + 1) wrong.push('"' + text + '" leaves its chart');
      for (const [other, o] of all.slice(i + 1)) {
        if (r.left < o.right - 1 && o.left < r.right - 1 && r.top < o.bottom - 3 && o.top < r.bottom - 3) wrong.push('"' + text + '" and "' + other + '" overlap');
      }
    });
    if (!svg.getAttribute('role') || !svg.getAttribute('aria-labelledby').split(' ').every(id => document.getElementById(id).textContent.trim())) wrong.push('a chart has no name');
  }
  for (const shape of ['p50', 'p95', 'p99', 'client', 'network', 'server', 'law', 'error']) {
    for (const e of document.querySelectorAll('svg .' + shape)) {
      const s = getComputedStyle(e), c = contrast(parse(s.fill === 'none' || shape === 'error' ? s.stroke : s.fill), behind(e));
      if (c < 3) { wrong.push('contrast ' + c.toFixed(2) + ' of a mark ' + shape); break; }
    }
  }
  const ids = [...document.querySelectorAll('[id]')].map(e => e.id);
  if (new Set(ids).size !== ids.length) wrong.push('an id is there twice');
  for (const a of document.querySelectorAll('a')) if (!document.getElementById(decodeURIComponent(a.hash.slice(1)))) wrong.push('a link leads nowhere: ' + a.hash);
  for (const e of document.querySelectorAll('.scroll')) if (e.tabIndex !== 0 || !(e.ariaLabel || e.getAttribute('aria-labelledby'))) wrong.push('a table that scrolls cannot be reached by keyboard');
  return { wrong, texts, dark: light(behind(document.body)) < 0.2, text: document.body.innerText, charts: document.querySelectorAll('figure > svg').length, height: root.scrollHeight };
})()`

// The page in a real browser: narrow and wide, light and dark. With SCREENSHOTS set
// to a folder, the pictures are put there.
func TestPageInABrowser(t *testing.T) {
	full, err := fullReport(t).HTML()
	if err != nil {
		t.Fatal(err)
	}
	awkward, err := awkwardReport(t).HTML()
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		asked = append(asked, r.URL.Path)
		mu.Unlock()
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		switch r.URL.Path {
		case "/full":
			fmt.Fprint(w, full)
		case "/awkward":
			fmt.Fprint(w, awkward)
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(server.Close)

	b := startBrowser(t)
	for _, c := range []struct {
		page   string
		width  int
		scheme string
		charts int
		says   []string
	}{
		{"/full", 360, "light", 9, []string{"Benchmark march", "Not passed", "hybrid-full"}},
		{"/full", 360, "dark", 9, []string{"24 of 25 points are valid", "3 of 4 comparisons with other servers have a result", "hybrid-full, nginx 1.28, 8 replicas: no ratio"}},
		{"/full", 820, "light", 9, []string{"Predicted, if the law holds"}},
		{"/full", 1280, "dark", 9, []string{"AMD EPYC", "Sent in the exchange", "16.6 kB"}},
		{"/full", 1600, "light", 9, []string{"Compared with february", "▲ better"}},
		{"/awkward", 360, "light", 5, []string{"<script>alert(1)</script>"}},
		{"/awkward", 1600, "dark", 5, []string{"<script>alert(1)</script>"}},
	} {
		t.Run(fmt.Sprintf("%s %d %s", strings.TrimPrefix(c.page, "/"), c.width, c.scheme), func(t *testing.T) {
			b.t = t
			mu.Lock()
			asked = nil
			mu.Unlock()
			var target struct{ TargetID string }
			b.call("", "Target.createTarget", dict{"url": "about:blank"}, &target)
			var session struct{ SessionID string }
			b.call("", "Target.attachToTarget", dict{"targetId": target.TargetID, "flatten": true}, &session)
			s := session.SessionID
			for _, domain := range []string{"Page", "Runtime", "Log", "Network"} {
				b.call(s, domain+".enable", dict{}, nil)
			}
			b.call(s, "Emulation.setDeviceMetricsOverride", dict{"width": c.width, "height": 900, "deviceScaleFactor": 1, "mobile": c.width < 600}, nil)
			b.call(s, "Emulation.setEmulatedMedia", dict{"features": []dict{{"name": "prefers-color-scheme", "value": c.scheme}}}, nil)
			for _, e := range b.open(s, server.URL+c.page) {
				switch e.Method {
				case "Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled":
					t.Errorf("the console has %s", e.Params)
				case "Network.requestWillBeSent":
					var request struct{ Request struct{ URL string } }
					if err := json.Unmarshal(e.Params, &request); err != nil || request.Request.URL != server.URL+c.page && !strings.HasPrefix(request.Request.URL, "data:") {
						t.Errorf("the page asks for %s", e.Params)
					}
				}
			}
			var result struct {
				Result struct {
					Value struct {
						Wrong         []string
						Texts, Charts int
						Dark          bool
						Text          string
						Height        int
					}
				}
				ExceptionDetails json.RawMessage
			}
			b.call(s, "Runtime.evaluate", dict{"expression": audit, "returnByValue": true}, &result)
			if result.ExceptionDetails != nil {
				t.Fatalf("%s", result.ExceptionDetails)
			}
			v := result.Result.Value
			for _, w := range v.Wrong {
				t.Error(w)
			}
			if v.Texts < 50 || v.Charts != c.charts {
				t.Errorf("%d texts and %d charts, want %d", v.Texts, v.Charts, c.charts)
			}
			if v.Dark != (c.scheme == "dark") {
				t.Errorf("dark is %v", v.Dark)
			}
			for _, text := range c.says {
				if !strings.Contains(v.Text, text) {
					t.Errorf("%q is not to be read", text)
				}
			}
			var picture struct{ Data []byte }
			b.call(s, "Page.captureScreenshot", dict{"format": "png", "captureBeyondViewport": true, "clip": dict{"x": 0, "y": 0, "width": c.width, "height": min(v.Height, 8000), "scale": 1}}, &picture)
			painted(t, picture.Data, c.scheme == "dark")
			if dir := os.Getenv("SCREENSHOTS"); dir != "" {
				name := filepath.Join(dir, fmt.Sprintf("%s-%d-%s.png", strings.TrimPrefix(c.page, "/"), c.width, c.scheme))
				if err := os.WriteFile(name, picture.Data, 0o644); err != nil {
					t.Error(err)
				}
			}
			b.call("", "Target.closeTarget", dict{"targetId": target.TargetID}, nil)
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(asked, []string{c.page}) {
				t.Errorf("the server was asked for %q", asked)
			}
		})
	}
}

// painted looks whether a screenshot shows a page of its scheme.
func painted(t *testing.T, data []byte, dark bool) {
	t.Helper()
	img, err := png.Decode(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	colors := map[[3]uint32]int{}
	pixels, bright := 0, 0
	for y := img.Bounds().Min.Y; y < img.Bounds().Max.Y; y += 3 {
		for x := img.Bounds().Min.X; x < img.Bounds().Max.X; x += 3 {
			r, g, b, _ := img.At(x, y).RGBA()
			colors[[3]uint32{r >> 8, g >> 8, b >> 8}]++
			if pixels++; r+g+b > 3*0x8000 {
				bright++
			}
		}
	}
	if len(colors) < 50 || (bright*2 > pixels) == dark {
		t.Errorf("%d colours, %d of %d pixels bright: not a page of this scheme", len(colors), bright, pixels)
	}
}
