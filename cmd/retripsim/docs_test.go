// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var figuresFlag = flag.String("figures", "", "the pictures and tables of the docs: check those that take no time, check all, or update")

var figuresIn = flag.String("in", "", "only in documents whose name contains this, and for commands that do")

const (
	pictureDir = "docs/img/"
	tableFile  = "table.md"
)

// docCommand is a retripsim command quoted in a document.
type docCommand struct {
	args string
	slow bool // a trailing comment says how long it takes
	out  string
	end  int // the line after its code block
}

var docCommandLine = regexp.MustCompile(`^    go run \./cmd/retripsim ([^#]*?)(?: +(# .*))?$`)

// docCommands finds the commands in lines. A backslash at the end of a line
// continues its command.
func docCommands(lines []string) []docCommand {
	var list []docCommand
	for i := 0; i < len(lines); i++ {
		row := lines[i]
		for strings.HasSuffix(row, `\`) && i+1 < len(lines) {
			i++
			row = strings.TrimSuffix(row, `\`) + strings.TrimSpace(lines[i])
		}
		m := docCommandLine.FindStringSubmatch(row)
		if m == nil {
			continue
		}
		c := docCommand{slow: m[2] != "", end: i + 1}
		fields := strings.Fields(m[1])
		for j := 0; j < len(fields); j++ {
			if fields[j] == "-o" && j+1 < len(fields) {
				c.out = fields[j+1]
				fields = append(fields[:j], fields[j+2:]...)
				break
			}
		}
		c.args = strings.Join(fields, " ")
		list = append(list, c)
	}
	return list
}

// TestFigures checks the docs against the output of the commands they quote:
// each command must parse, each picture must be what its command draws, and
// each table that follows a command must be what that command writes. `make
// figures` updates them.
func TestFigures(t *testing.T) {
	t.Chdir("../..") // where the commands are run
	files, err := filepath.Glob("docs/*.md")
	require.NoError(t, err)
	pictures := map[string]bool{}
	for _, file := range append(files, "README.md") {
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		lines := strings.Split(string(data), "\n")
		commands := docCommands(lines)
		// Start from the last command, so that line numbers stay valid.
		for i := len(commands) - 1; i >= 0; i-- {
			c := commands[i]
			picture := strings.HasPrefix(c.out, pictureDir)
			if picture {
				pictures[filepath.Base(c.out)] = true
				assert.Contains(t, string(data), "img/"+filepath.Base(c.out), "%s shows the picture", file)
			}
			fields := strings.Fields(c.args)
			require.NotEmpty(t, fields, file)
			require.NoError(t, parses(fields), "%s: %s", file, c.args)
			if (c.slow && *figuresFlag == "") || !(picture || c.out == tableFile) || !strings.Contains(file+" "+c.args, *figuresIn) {
				continue
			}
			r := reportOf(t, c.args)
			if picture {
				checkPicture(t, r, c.out)
				continue
			}
			var table bytes.Buffer
			require.NoError(t, r.writeMarkdown(&table))
			lines = checkTable(t, lines, c, table.String(), file)
		}
		if *figuresFlag == "update" {
			require.NoError(t, os.WriteFile(file, []byte(strings.Join(lines, "\n")), 0o644))
		}
	}
	made, err := filepath.Glob(pictureDir + "*.svg")
	require.NoError(t, err)
	for _, name := range made {
		light := strings.Replace(filepath.Base(name), "-dark.svg", ".svg", 1)
		assert.True(t, pictures[light], "%s is made by no command of the docs", name)
	}
	assert.Len(t, made, 2*len(pictures))
}

func parses(fields []string) error {
	for _, c := range commands {
		if c.name == fields[0] {
			f := newFlags(c.name)
			c.setup(f)
			return f.parse(fields[1:])
		}
	}
	return fmt.Errorf("unknown command %q", fields[0])
}

func checkPicture(t *testing.T, r *report, out string) {
	for suffix, theme := range map[string]*theme{".svg": light, "-dark.svg": dark} {
		f, err := r.draw(theme)
		require.NoError(t, err)
		var drawn bytes.Buffer
		require.NoError(t, f.write(&drawn, ".svg"))
		name := strings.TrimSuffix(out, ".svg") + suffix
		if *figuresFlag == "update" {
			require.NoError(t, os.WriteFile(name, drawn.Bytes(), 0o644))
			continue
		}
		had, err := os.ReadFile(name)
		require.NoError(t, err)
		assert.True(t, bytes.Equal(had, drawn.Bytes()), "%s isn't what its command draws: run `make figures`", name)
	}
}

// checkTable compares the table that follows a command with the command's
// output, or replaces it.
func checkTable(t *testing.T, lines []string, c docCommand, table, file string) []string {
	from := c.end
	for from < len(lines) && !strings.HasPrefix(lines[from], "|") && lines[from] == "" {
		from++
	}
	to := from
	for to < len(lines) && strings.HasPrefix(lines[to], "|") {
		to++
	}
	want := strings.Split(strings.TrimSuffix(table, "\n"), "\n")
	if *figuresFlag == "update" {
		if from == to {
			want = append(want, "")
		}
		return append(append(append([]string{}, lines[:from]...), want...), lines[to:]...)
	}
	assert.Equal(t, want, lines[from:to], "%s: %s: run `make figures`", file, c.args)
	return lines
}
