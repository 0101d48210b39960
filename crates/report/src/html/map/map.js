/* SPDX-License-Identifier: Apache-2.0 */
'use strict';
// The page is complete without this script. It shows the titles of cells at once, where the browser
// waits, and lets the arrow keys move from cell to cell.
const tooltip = document.getElementById('tooltip');
const cells = [...document.querySelectorAll('.grid-of-pages rect')];
const show = cell => {
  tooltip.textContent = cell ? cell.querySelector('title').textContent : '';
  tooltip.hidden = !cell;
};
const cellOf = event => event.target instanceof Element ? event.target.closest('.grid-of-pages rect') : null;
document.addEventListener('mouseover', event => show(cellOf(event) ?? cellOf({ target: document.activeElement })));
document.addEventListener('focusin', event => show(cellOf(event)));
document.addEventListener('focusout', () => show(null));
// One stop of the Tab key for each grid; the arrow keys move on from there.
for (const grid of document.querySelectorAll('.grid-of-pages')) grid.querySelector('rect')?.setAttribute('tabindex', '0');
document.addEventListener('keydown', event => {
  const cell = cellOf(event);
  if (event.key === 'Escape') show(null);
  if (!cell) return;
  const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  const line = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  let next;
  if (move) next = cells[cells.indexOf(cell) + move];
  if (line) {
    // The nearest cell of the next row up or down.
    const at = cell.getBoundingClientRect();
    let best = Infinity;
    for (const other of cells) {
      const there = other.getBoundingClientRect();
      const down = (there.top - at.top) * line;
      if (there.width === 0 || down < 1) continue;
      const far = down * 1000 + Math.abs(there.left - at.left);
      if (far < best) { best = far; next = other; }
    }
  }
  if (!move && !line) return;
  event.preventDefault();
  if (!next) return;
  next.setAttribute('tabindex', '-1');
  next.focus();
});
for (const button of document.querySelectorAll('.legend button')) {
  button.addEventListener('click', () => {
    const pressed = button.getAttribute('aria-pressed') !== 'true';
    for (const other of document.querySelectorAll('.legend button')) other.setAttribute('aria-pressed', 'false');
    button.setAttribute('aria-pressed', String(pressed));
    document.body.classList.toggle('picked', pressed);
    for (const cell of cells) cell.classList.toggle('other', pressed && !cell.classList.contains(button.dataset.class));
  });
}
