// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/constant"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path"
	"slices"
	"strconv"
	"strings"
)

// mutant is one change to the code.
type mutant struct {
	id   int
	file string
	line int
	what string
}

// pkg is a type-checked package.
type pkg struct {
	dir   string
	name  string
	fset  *token.FileSet
	files map[string]*ast.File
	info  types.Info
	types *types.Package
}

// load parses and type-checks the package in dir. Imports come from export data
// built by the go command.
func load(dir string) (*pkg, error) {
	cmd := exec.Command("go", "list", "-export", "-deps", "-json=ImportPath,Export,Name,GoFiles,DepOnly", "./"+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, err
	}
	exports := map[string]string{}
	k := &pkg{dir: dir, fset: token.NewFileSet(), files: map[string]*ast.File{}}
	var importPath string
	var names []string
	for in := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct {
			ImportPath, Export, Name string
			GoFiles                  []string
			DepOnly                  bool
		}
		if err := in.Decode(&p); err == io.EOF {
			break
		} else if err != nil {
			return nil, err
		}
		exports[p.ImportPath] = p.Export
		if !p.DepOnly {
			importPath, k.name, names = p.ImportPath, p.Name, p.GoFiles
		}
	}
	k.info = types.Info{Types: map[ast.Expr]types.TypeAndValue{}}
	var files []*ast.File
	for _, name := range names {
		name = path.Join(dir, name)
		file, err := parser.ParseFile(k.fset, name, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		k.files[name] = file
		files = append(files, file)
	}
	config := types.Config{Importer: importer.ForCompiler(k.fset, "gc", func(imported string) (io.ReadCloser, error) {
		return os.Open(exports[imported])
	})}
	k.types, err = config.Check(importPath, k.fset, files, &k.info)
	return k, err
}

// rewriter prints one file with its mutants.
type rewriter struct {
	*pkg
	name    string
	source  []byte
	next    int
	results [][]string // result types of the enclosing functions
	mutants []mutant
}

// mutate returns the text of a file with all its mutants.
func (k *pkg) mutate(name string, first int) ([]byte, []mutant, error) {
	file := k.files[name]
	if file == nil {
		return nil, nil, fmt.Errorf("%s is not a Go file of a package", name)
	}
	source, err := os.ReadFile(name)
	if err != nil {
		return nil, nil, err
	}
	r := &rewriter{pkg: k, name: name, source: source, next: first}
	text := r.text(file.FileStart, file.FileEnd, func(yield func(ast.Node)) {
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Body != nil && f.Name.Name != "String" {
				yield(f)
			}
		}
	})
	return []byte(text), r.mutants, nil
}

func (r *rewriter) raw(n ast.Node) string {
	return string(r.source[r.fset.Position(n.Pos()).Offset:r.fset.Position(n.End()).Offset])
}

// text returns the source between two positions, with the child nodes rendered.
func (r *rewriter) text(from, to token.Pos, children func(yield func(ast.Node))) string {
	var b strings.Builder
	at := r.fset.Position(from).Offset
	children(func(child ast.Node) {
		start := r.fset.Position(child.Pos()).Offset
		b.Write(r.source[at:start])
		b.WriteString(r.render(child))
		at = r.fset.Position(child.End()).Offset
	})
	b.Write(r.source[at:r.fset.Position(to).Offset])
	return b.String()
}

// inner renders a node's children and keeps the node itself.
func (r *rewriter) inner(n ast.Node) string {
	return r.text(n.Pos(), n.End(), func(yield func(ast.Node)) {
		ast.Inspect(n, func(child ast.Node) bool {
			if child == nil || child == n {
				return child != nil
			}
			yield(child)
			return false
		})
	})
}

// new assigns a mutant its number.
func (r *rewriter) new(n ast.Node, format string, args ...any) int {
	what := strings.Join(strings.Fields(fmt.Sprintf(format, args...)), " ")
	r.mutants = append(r.mutants, mutant{r.next, r.name, r.fset.Position(n.Pos()).Line, what})
	r.next++
	return r.next - 1
}

var swapped = map[token.Token]token.Token{
	token.LSS: token.LEQ, token.LEQ: token.LSS, token.GTR: token.GEQ, token.GEQ: token.GTR,
	token.EQL: token.NEQ, token.NEQ: token.EQL,
	token.ADD: token.SUB, token.SUB: token.ADD, token.MUL: token.ADD, token.QUO: token.MUL, token.REM: token.MUL,
	token.SHL: token.SHR, token.SHR: token.SHL, token.AND: token.OR, token.OR: token.AND,
}

// render returns the text of a node with its mutants and those of its children.
func (r *rewriter) render(n ast.Node) string {
	if e, ok := n.(ast.Expr); ok && !isNegated(n) {
		value := r.info.Types[e]
		switch {
		case value.IsType() || value.IsBuiltin():
			return r.raw(n)
		case value.Value != nil:
			return r.constant(e, value)
		}
	}
	switch n := n.(type) {
	case *ast.FuncDecl:
		return r.function(n, n.Type, n.Body)
	case *ast.FuncLit:
		return r.function(n, n.Type, n.Body)
	case *ast.GenDecl, *ast.FuncType:
		return r.raw(n)
	case *ast.SelectorExpr:
		return r.text(n.Pos(), n.End(), func(yield func(ast.Node)) { yield(n.X) })
	case *ast.KeyValueExpr:
		return r.text(n.Pos(), n.End(), func(yield func(ast.Node)) { yield(n.Value) })
	case *ast.BinaryExpr:
		return r.binary(n)
	case *ast.IfStmt:
		return r.conditional(n)
	case removed:
		id := r.new(n, "%s: left out", r.raw(n.Stmt))
		return fmt.Sprintf("if !mutant(%d) { %s }", id, r.render(n.Stmt))
	case negated:
		id := r.new(n, "%s: negated", r.raw(n.Expr))
		return fmt.Sprintf("mutant(%d) != (%s)", id, r.render(n.Expr))
	case *ast.BlockStmt:
		return r.list(n, nil, n.List)
	case *ast.CaseClause:
		return r.list(n, n.List, n.Body)
	case *ast.CommClause:
		return r.list(n, nil, n.Body)
	case *ast.AssignStmt:
		text := r.text(n.Pos(), n.End(), func(yield func(ast.Node)) {
			for _, right := range n.Rhs {
				yield(right)
			}
		})
		return text
	case *ast.ReturnStmt:
		return r.returned(n)
	}
	return r.inner(n)
}

// constant replaces a number by another one.
func (r *rewriter) constant(e ast.Expr, value types.TypeAndValue) string {
	basic, ok := value.Type.Underlying().(*types.Basic)
	if !ok || basic.Info()&types.IsNumeric == 0 || basic.Info()&types.IsUntyped != 0 {
		return r.raw(e)
	}
	other := "+1"
	if f, _ := constant.Float64Val(constant.ToFloat(value.Value)); f > 100 {
		other = "-1"
	}
	hidden := false
	name := types.TypeString(value.Type, func(p *types.Package) string {
		if p == r.types {
			return ""
		}
		hidden = hidden || !r.imports(p)
		return p.Name()
	})
	if hidden {
		return r.raw(e)
	}
	id := r.new(e, "%s -> (%[1]s)%s", r.raw(e), other)
	return fmt.Sprintf("mutantPick[%s](%d, %s, (%s)%s)", name, id, r.raw(e), r.raw(e), other)
}

// imports reports whether the file can name the types of p.
func (r *rewriter) imports(p *types.Package) bool {
	return slices.ContainsFunc(r.files[r.name].Imports, func(s *ast.ImportSpec) bool {
		return s.Name == nil && s.Path.Value == strconv.Quote(p.Path())
	})
}

func (r *rewriter) binary(n *ast.BinaryExpr) string {
	other, ok := swapped[n.Op]
	if !ok && n.Op != token.LAND && n.Op != token.LOR {
		return r.inner(n)
	}
	x, y := r.render(n.X), r.render(n.Y)
	switch n.Op {
	case token.LAND:
		a, b := r.new(n.X, "%s && …: without it", r.raw(n.X)), r.new(n.Y, "… && %s: without it", r.raw(n.Y))
		return fmt.Sprintf("((mutant(%d) || (%s)) && (mutant(%d) || (%s)))", a, x, b, y)
	case token.LOR:
		a, b := r.new(n.X, "%s || …: without it", r.raw(n.X)), r.new(n.Y, "… || %s: without it", r.raw(n.Y))
		return fmt.Sprintf("((!mutant(%d) && (%s)) || (!mutant(%d) && (%s)))", a, x, b, y)
	}
	if basic, ok := r.info.Types[n].Type.Underlying().(*types.Basic); !ok || basic.Info()&(types.IsNumeric|types.IsBoolean) == 0 {
		return fmt.Sprintf("%s %s %s", x, n.Op, y)
	} else if basic.Info()&types.IsNumeric != 0 {
		if r.calls(n) {
			// mutantPick would call twice.
			return fmt.Sprintf("(%s) %s (%s)", x, n.Op, y)
		}
		id := r.new(n, "%s -> %s", r.raw(n), other)
		return fmt.Sprintf("mutantPick(%d, (%s) %s (%s), (%[2]s) %[5]s (%[4]s))", id, x, n.Op, y, other)
	}
	id := r.new(n, "%s -> %s", r.raw(n), other)
	return fmt.Sprintf("(mutant(%d) && (%s) %s (%s) || !mutant(%[1]d) && (%[2]s) %[5]s (%[4]s))", id, x, other, y, n.Op)
}

// calls reports whether n calls a function, which may do more than to return a
// value.
func (r *rewriter) calls(n ast.Node) (any bool) {
	ast.Inspect(n, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			f := r.info.Types[call.Fun]
			any = any || !f.IsType() && !f.IsBuiltin()
		}
		return !any
	})
	return any
}

// conditional negates conditions that aren't comparisons.
func (r *rewriter) conditional(n *ast.IfStmt) string {
	return r.text(n.Pos(), n.End(), func(yield func(ast.Node)) {
		if n.Init != nil {
			yield(n.Init)
		}
		if _, ok := n.Cond.(*ast.BinaryExpr); ok {
			yield(n.Cond)
		} else {
			yield(negated{n.Cond})
		}
		yield(n.Body)
		if n.Else != nil {
			yield(n.Else)
		}
	})
}

// negated is a condition to negate.
type negated struct{ ast.Expr }

func isNegated(n ast.Node) bool {
	_, ok := n.(negated)
	return ok
}

func (r *rewriter) function(n ast.Node, f *ast.FuncType, body *ast.BlockStmt) string {
	var results []string
	if f.Results != nil {
		for _, field := range f.Results.List {
			for range max(1, len(field.Names)) {
				results = append(results, r.raw(field.Type))
			}
		}
	}
	r.results = append(r.results, results)
	defer func() { r.results = r.results[:len(r.results)-1] }()
	return r.text(n.Pos(), n.End(), func(yield func(ast.Node)) { yield(body) })
}

// returned replaces returned values by the opposite, or by zeros.
func (r *rewriter) returned(n *ast.ReturnStmt) string {
	text := r.text(n.Pos(), n.End(), func(yield func(ast.Node)) {
		for _, result := range n.Results {
			yield(result)
		}
	})
	types := r.results[len(r.results)-1]
	if len(types) == 1 && types[0] == "bool" {
		id := r.new(n, "%s: negated", r.raw(n))
		return fmt.Sprintf("return mutant(%d) != (%s)", id, strings.TrimPrefix(text, "return"))
	}
	var zeros []string
	for _, t := range types {
		zeros = append(zeros, "*new("+t+")")
	}
	if !slices.ContainsFunc(n.Results, func(e ast.Expr) bool { return !isZero(r.raw(e)) }) {
		return text
	}
	id := r.new(n, "%s: zeros", r.raw(n))
	return fmt.Sprintf("if mutant(%d) { return %s }; %s", id, strings.Join(zeros, ", "), text)
}

func isZero(text string) bool {
	return text == "nil" || text == "0" || text == "false" || text == `""` || strings.HasSuffix(text, "{}")
}

// list renders statements, each of which may be omitted.
func (r *rewriter) list(n ast.Node, cases []ast.Expr, list []ast.Stmt) string {
	return r.text(n.Pos(), n.End(), func(yield func(ast.Node)) {
		for _, c := range cases {
			yield(c)
		}
		for _, stmt := range list {
			if r.removable(stmt) {
				yield(removed{stmt})
			} else {
				yield(stmt)
			}
		}
	})
}

// removed is a statement to omit.
type removed struct{ ast.Stmt }

// removable reports whether a statement can be omitted.
func (r *rewriter) removable(n ast.Stmt) bool {
	text := r.raw(n)
	switch n := n.(type) {
	case *ast.ExprStmt:
		// A test without an unlock or an end would only hang.
		return !strings.Contains(text, "Lock()") && !strings.HasPrefix(text, "panic(")
	case *ast.AssignStmt:
		return n.Tok != token.DEFINE
	case *ast.IncDecStmt:
		return true
	}
	return false
}
